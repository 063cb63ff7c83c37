"""Every Serve config that ships: complete, accepted by Ray Serve and by vLLM's argument parser, passed by doctor."""

import dataclasses
from pathlib import Path

import pytest

from policies import engine_args
from serve.app import build
from serve.config import yaml_files
from serve.config.gateway import GatewayConfig
from serve.launch.submit import serve_document
from serve.tools.decider import Decider
from serve.tools.doctor import examine

DEPLOY = Path(__file__).parents[3] / "deploy"
CONFIGS = [
    path
    for path in sorted([*DEPLOY.glob("*.yaml"), *DEPLOY.glob("overlays/*.yaml")])
    if "applications" in yaml_files.read(path)
]


def named(path: Path) -> str:
    return str(path.relative_to(DEPLOY))


@pytest.fixture
def gpu_image(monkeypatch: pytest.MonkeyPatch) -> None:
    """As in the image that these configs are for: vLLM's GPU build, whose runner differs from the CPU build's."""
    monkeypatch.setattr(engine_args, "installed_engine", lambda: ("0.32.0", False))


def test_the_configs_are_found() -> None:
    assert {"h20-kimi-qwen.yaml", "remote.yaml", "sim.yaml", "laptop.yaml", "overlays/k26-one-node.yaml"} <= set(
        map(named, CONFIGS)
    )


@pytest.mark.parametrize("path", CONFIGS, ids=named)
def test_ray_serve_knows_every_key_and_the_gateway_every_setting(path: Path) -> None:
    assert serve_document(path)["applications"][0]["import_path"] == "serve.app:build"


@pytest.mark.parametrize("path", CONFIGS, ids=named)
@pytest.mark.usefixtures("gpu_image")
def test_doctor_finds_nothing_uncovered(path: Path) -> None:
    report = examine(Decider.load(path))
    assert [each for each in report["findings"] if each["level"] == "error"] == []


@pytest.mark.parametrize("path", CONFIGS, ids=named)
@pytest.mark.usefixtures("gpu_image")
def test_every_model_that_has_tools_serves_all_of_them_somewhere(path: Path) -> None:
    rows = [row for model in examine(Decider.load(path))["models"].values() for row in model["requests"]]
    assert not any(row["refused"] for row in rows)


@pytest.mark.usefixtures("gpu_image")
def test_the_field_report_s_remote_engines_keep_tools_away_from_the_drafter_that_cuts_them() -> None:
    decisions = {
        " ".join(row["classes"]): row["pool"]
        for row in examine(Decider.load(DEPLOY / "remote.yaml"))["models"]["kimi-k2.6"]["requests"]
    }
    assert decisions["plain"] == "speculative"
    assert decisions["tools_auto stream"] == "standard"


@pytest.mark.parametrize("path", CONFIGS, ids=named)
def test_ray_serve_accepts_the_options_of_every_deployment(path: Path) -> None:
    """The application graph is built as in a cluster, and started nowhere."""
    config = GatewayConfig.load(path)
    application = build(config)
    assert application._bound_deployment.name == "Gateway"
    _, pools, admin_api = application._bound_deployment.init_args
    assert admin_api._bound_deployment.name == "AdminApi"
    hosted = [(name, pool) for name, _, pool, settings in config.each_pool() if settings.kind != "remote"]
    assert [each[:2] for each in pools] == hosted


@pytest.mark.parametrize("path", [each for each in CONFIGS if each.parent.name == "overlays"], ids=named)
def test_an_overlay_leaves_no_model_without_pools(path: Path) -> None:
    assert all(model.pools for model in GatewayConfig.load(path).models.values())


def test_vllm_accepts_the_engine_arguments_of_every_pool() -> None:
    """vLLM's real parser; it reads no model. Takes what importing vLLM takes."""
    vllm_host = pytest.importorskip("serve.engine.vllm.host")
    speculative_keys = {each.name for each in dataclasses.fields(pytest.importorskip("vllm.config").SpeculativeConfig)}
    for path in CONFIGS:
        config = GatewayConfig.load(path)
        for name, model, pool, settings in config.each_pool():
            if settings.kind == "vllm":
                parsed = vllm_host.parse_args(model.engine_args_of(pool), (name, *model.aliases), "key")
                assert parsed.tool_call_parser.startswith("specgate_")
                assert set(parsed.speculative_config or {}) <= speculative_keys
