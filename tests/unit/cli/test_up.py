"""`specgate up` and `specgate deploy`, without a cluster."""

import json
import os
import subprocess
from collections.abc import Callable
from importlib.util import find_spec
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest
import yaml

from serve.launch import submit
from serve.launch.ports import free_port

ROOT = Path(__file__).parents[3]
Run = Callable[..., tuple[int, str]]
needs_vllm = pytest.mark.skipif(find_spec("vllm") is None, reason="vLLM's own parsers check engine arguments")


@pytest.fixture(autouse=True)
def _no_token(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    """Ray's mode is a variable of the whole process; a test leaves it as it was."""
    monkeypatch.setenv("HOME", str(tmp_path))
    for name in ("RAY_AUTH_MODE", "RAY_AUTH_TOKEN", "RAY_AUTH_TOKEN_PATH"):
        monkeypatch.delenv(name, raising=False)


@pytest.fixture
def started(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> list[list[str]]:
    """What would have been started, from a folder that holds `deploy` and nothing else."""
    calls: list[list[str]] = []

    def run(command: list[str], **_: Any) -> SimpleNamespace:
        calls.append(command)
        return SimpleNamespace(returncode=0)

    monkeypatch.setattr(subprocess, "run", run)
    (tmp_path / "deploy").symlink_to(ROOT / "deploy")
    monkeypatch.chdir(tmp_path)
    return calls


def mine(tmp_path: Path, **layer: Any) -> Path:
    """`cluster.yaml` with addresses and an image of one's own."""
    own = {
        "provider": {"head_ip": "10.0.0.1", "worker_ips": ["10.0.0.2", "10.0.0.3", "10.0.0.4"]},
        "docker": {"image": "registry.internal/specgate:1"},
    }
    path = tmp_path / "mine.yaml"
    path.write_text(yaml.safe_dump({"extends": str(ROOT / "cluster.yaml"), **own, **layer}))
    return path


def test_check_shows_nodes_and_memory_and_starts_nothing(specgate: Run, started: list[list[str]]) -> None:
    code, output = specgate("up", "--check", ROOT / "cluster.yaml")
    assert code == 0, output
    assert "kimi-k2.6/speculative" in output
    assert "131,072" in output
    assert "5 placeholders to replace before it can start" in output
    assert started == []


def test_json_is_one_document(specgate: Run, started: list[list[str]], tmp_path: Path) -> None:
    code, output = specgate("up", "--check", "--json", mine(tmp_path, provider={"worker_ips": ["10.0.0.2"]}))
    report = json.loads(output)
    assert (code, report["ok"]) == (1, False)
    assert {"GPUs"} <= {each["about"] for each in report["findings"]}


def test_placeholders_are_not_started(specgate: Run, started: list[list[str]]) -> None:
    code, output = specgate("up", ROOT / "cluster.yaml")
    assert code == 2
    assert "still has the placeholders" in output
    assert started == []


def test_a_variant_is_written_out_for_ray(specgate: Run, started: list[list[str]], tmp_path: Path) -> None:
    code, output = specgate("up", mine(tmp_path))
    assert code == 0, output
    assert started == [["ray", "up", "--yes", "run/mine.yaml"]]
    written = yaml.safe_load((tmp_path / "run" / "mine.yaml").read_text())
    assert written["provider"]["head_ip"] == "10.0.0.1"
    assert "extends" not in written


def test_each_finding_of_doctor_is_told_once(specgate: Run, started: list[list[str]], tmp_path: Path) -> None:
    pool = {"max_ongoing_requests": 64, "engine_args": {"such-option": 1}}
    args = {"models": {"kimi-k2.6": {"pools": {"speculative": pool}}}}
    served = {"extends": str(ROOT / "deploy/h20-kimi-qwen.yaml"), "applications": [{"name": "specgate", "args": args}]}
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump(served))
    start = yaml.safe_load((ROOT / "cluster.yaml").read_text())["head_start_ray_commands"][1]
    path = mine(tmp_path, head_start_ray_commands=[start, f"specgate deploy --config {config} --no-wait"])
    code, output = specgate("up", "--check", "--json", path)
    findings = json.loads(output)["findings"]
    assert code == 1
    for level, text in (("error", "vLLM has no engine argument 'such-option'"), ("warning", "its engine runs 25")):
        (found,) = [each for each in findings if text in each["message"]]
        assert (found["level"], found["about"]) == (level, "kimi-k2.6/speculative")


def test_what_can_t_work_is_not_started(specgate: Run, started: list[list[str]], tmp_path: Path) -> None:
    code, output = specgate("up", mine(tmp_path, docker={"image": "x", "container_name": None}))
    assert code == 1
    assert "cannot work as configured" in output
    assert started == []


def test_ray_s_token_is_used_where_there_is_one(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    submit.use_token()
    assert "RAY_AUTH_MODE" not in os.environ
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    monkeypatch.setenv("RAY_AUTH_MODE", "disabled")
    submit.use_token()
    assert os.environ["RAY_AUTH_MODE"] == "disabled"
    monkeypatch.delenv("RAY_AUTH_MODE")
    submit.use_token()
    assert os.environ["RAY_AUTH_MODE"] == "token"


class FakeClient:
    """Ray's client for a cluster whose application passes through the given states."""

    sent: list[Any]

    def __init__(self, states: list[dict[str, Any] | OSError]) -> None:
        self.sent, self.states = [], states

    def deploy_applications(self, document: dict[str, Any]) -> None:
        self.sent.append(document)

    def get_serve_details(self) -> dict[str, Any]:
        if not self.sent:
            return {"applications": {}, "http_options": {"host": "127.0.0.1", "port": 9999}}
        state = self.states.pop(0) if len(self.states) > 1 else self.states[0]
        if isinstance(state, OSError):
            raise state
        return {"applications": {"specgate": state}}


def deployment(status: str, message: str = "") -> dict[str, Any]:
    return {"status": status, "message": message}


@pytest.fixture
def cluster(monkeypatch: pytest.MonkeyPatch) -> Callable[..., FakeClient]:
    def make(*states: dict[str, Any] | OSError) -> FakeClient:
        client = FakeClient(list(states))
        monkeypatch.setattr(submit, "_client", lambda *_: client)
        monkeypatch.setattr(submit, "_POLL_S", 0)
        return client

    return make


def test_deploy_sends_the_merged_document_and_waits(specgate: Run, cluster: Callable[..., FakeClient]) -> None:
    client = cluster(
        {"status": "DEPLOYING", "deployments": {"a": deployment("UPDATING")}},
        {"status": "RUNNING", "deployments": {"a": deployment("HEALTHY")}},
    )
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "overlays" / "qwen-one-node.yaml")
    assert code == 0, output
    assert "a is up" in output
    assert "every pool is up" in output
    (sent,) = client.sent
    assert list(sent["applications"][0]["args"]["models"]) == ["qwen3.6-35b", "qwen3-coder-30b"]


def test_a_pool_that_fails_is_told_with_its_own_error(specgate: Run, cluster: Callable[..., FakeClient]) -> None:
    message = "Traceback ...\nserve.errors.ConfigError: the parser 'x' is not known\n"
    cluster({"status": "DEPLOY_FAILED", "deployments": {"kimi--standard": deployment("UNHEALTHY", message)}})
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml")
    *_, reply, more = output.strip().splitlines()
    assert (code, reply) == (2, "specgate: kimi--standard: the parser 'x' is not known")
    assert "the replica's log" in more


def test_a_head_that_is_silent_for_a_moment_is_asked_again(specgate: Run, cluster: Callable[..., FakeClient]) -> None:
    client = cluster(ConnectionResetError("gone"), {"status": "RUNNING"})
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml")
    assert code == 0, output
    assert len(client.sent) == 1


def test_who_waits_for_a_head_that_does_not_answer_is_told_so(specgate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(submit, "_CONNECT_TIMEOUT_S", 0.1)
    address = f"127.0.0.1:{free_port()}"
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml", "--address", address)
    assert code == 2
    assert f"no Ray dashboard responds at http://{address} yet; retrying" in output
    assert "ray dashboard cluster.yaml" in output


def test_a_head_that_breaks_off_when_it_is_sent_the_config_is_told(
    specgate: Run, cluster: Callable[..., FakeClient], monkeypatch: pytest.MonkeyPatch
) -> None:
    def broken(_: Any) -> None:
        raise ConnectionResetError("gone")

    monkeypatch.setattr(cluster({"status": "RUNNING"}), "deploy_applications", broken)
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml")
    assert code == 2
    assert "broke off" in output


def test_a_pool_that_does_not_come_up_in_time_is_named_and_what_it_waits_for_is_told_once(
    specgate: Run, cluster: Callable[..., FakeClient]
) -> None:
    waits = deployment("UPDATING", "1 replica has taken more than 30s to be scheduled.")
    cluster({"status": "DEPLOYING", "deployments": {"kimi--standard": waits}})
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml", "--timeout-s", "1")
    assert code == 2
    assert "not up within 1 s: kimi--standard" in output
    assert output.count("kimi--standard: 1 replica has taken more than 30s") == 1


def test_http_options_that_serve_does_not_change_while_it_runs_are_told(
    specgate: Run, cluster: Callable[..., FakeClient]
) -> None:
    cluster({"status": "RUNNING"})
    code, output = specgate("deploy", "--config", ROOT / "deploy" / "sim.yaml")
    assert code == 0
    assert "http_options.port stays 9999, not 8000" in output
    assert "http_options.host" not in output


@pytest.mark.parametrize(
    ("pool", "reply"),
    [
        ({"kind": "sim", "sim": {"sede": 1}}, "m/p: simulated engine: unknown settings ['sede']"),
        pytest.param(
            {"engine_args": {"model": "x", "max-model-lne": 1}},
            "vLLM has no engine argument 'max-model-lne'",
            marks=needs_vllm,
        ),
        pytest.param(
            {"engine_args": {"model": "x", "max-model-len": "long"}}, "rejects the engine arguments", marks=needs_vllm
        ),
    ],
    ids=["sim", "unknown", "value"],
)
def test_settings_with_which_an_engine_would_not_start_replace_none_that_runs(
    specgate: Run, cluster: Callable[..., FakeClient], tmp_path: Path, pool: dict[str, Any], reply: str
) -> None:
    client, path = cluster({"status": "RUNNING"}), tmp_path / "own.yaml"
    args = {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": pool}}}}
    path.write_text(yaml.safe_dump({"applications": [{"name": "s", "import_path": "serve.app:build", "args": args}]}))
    code, output = specgate("deploy", "--config", path)
    assert (code, client.sent) == (2, []), output
    assert reply in output
    assert specgate("deploy", "--config", path, "--accept-hazards")[0] == 0


def test_dry_run_prints_a_file_that_needs_no_other(specgate: Run) -> None:
    code, output = specgate("deploy", "--dry-run", "--config", ROOT / "deploy" / "overlays" / "k25.yaml")
    document = yaml.safe_load(output)
    assert code == 0
    assert "extends" not in document
    assert list(document["applications"][0]["args"]["models"]) == ["kimi-k2.5"]


def test_dry_run_refuses_a_gateway_that_anybody_can_use(specgate: Run, tmp_path: Path) -> None:
    pool = {"kind": "sim", "ray_actor_options": {"num_cpus": 0.1}}
    args = {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": pool}}}}
    path = tmp_path / "own.yaml"
    application = {"name": "s", "import_path": "serve.app:build", "args": args}
    path.write_text(yaml.safe_dump({"http_options": {"host": "0.0.0.0"}, "applications": [application]}))
    code, output = specgate("deploy", "--dry-run", "--config", path)
    assert (code, "access.mode" in output) == (2, True), output
    assert specgate("deploy", "--dry-run", "--config", path, "--accept-hazards")[0] == 0


@pytest.mark.parametrize(
    ("layer", "reply"),
    [
        ({"proxy_locatoin": "HeadOnly"}, "Ray Serve has no key proxy_locatoin"),
        ({"http_options": {"prot": 8000}}, "Ray Serve has no key http_options.prot"),
        ({"applications": [{"name": "specgate", "rout_prefix": "/"}]}, "has no key applications.0.rout_prefix"),
        ({"http_options": {"port": "eighty"}}, "Ray Serve rejects"),
        (
            {"applications": [{"name": "specgate", "args": {"modles": {}}}]},
            "modles: unknown key; did you mean `models`",
        ),
    ],
    ids=str,
)
def test_a_typing_error_is_told_before_anything_is_sent(
    specgate: Run, tmp_path: Path, layer: dict[str, Any], reply: str
) -> None:
    path = tmp_path / "own.yaml"
    path.write_text(yaml.safe_dump({"extends": str(ROOT / "deploy" / "sim.yaml"), **layer}))
    code, output = specgate("deploy", "--config", path)
    assert code == 2
    assert reply in " ".join(output.split())


@pytest.mark.parametrize("command", ["deploy", "serve", "doctor"])
def test_tls_in_the_serve_config_is_refused_before_anything_starts(specgate: Run, tmp_path: Path, command: str) -> None:
    path = tmp_path / "own.yaml"
    layer = {"http_options": {"ssl_certfile": "cert.pem", "ssl_keyfile": "key.pem"}}
    path.write_text(yaml.safe_dump({"extends": str(ROOT / "deploy" / "sim.yaml"), **layer}))
    code, output = specgate(command, "--config", path)
    assert code == 2
    assert "HAProxy speaks plain HTTP only" in " ".join(output.split())
    assert "docs/how-to/put-tls-in-front.md" in " ".join(output.split())


def test_tls_in_the_serve_config_of_a_cluster_file_is_an_error(
    specgate: Run, started: list[list[str]], tmp_path: Path
) -> None:
    path = tmp_path / "own.yaml"
    layer = {"http_options": {"ssl_certfile": "cert.pem"}}
    path.write_text(yaml.safe_dump({"extends": str(ROOT / "deploy" / "h20-kimi-qwen.yaml"), **layer}))
    command = f"specgate deploy --config {path}"
    code, output = specgate("up", "--check", mine(tmp_path, head_start_ray_commands=["ray start --head", command]))
    assert code == 1
    assert "HAProxy speaks plain HTTP only" in " ".join(output.split())
    assert started == []


def test_hazards_are_deployed_only_when_accepted(
    specgate: Run, cluster: Callable[..., FakeClient], kimi: Callable[..., Path], tmp_path: Path
) -> None:
    cluster({"status": "RUNNING"})
    gateway = yaml.safe_load(kimi().read_text())
    del gateway["models"]["kimi"]["pools"]["standard"]
    path = tmp_path / "own.yaml"
    application = {"name": "specgate", "import_path": "serve.app:build", "args": gateway}
    path.write_text(yaml.safe_dump({"applications": [application]}))
    code, output = specgate("deploy", "--config", path)
    assert code == 2
    assert "hazards that nothing covers" in output
    assert "--accept-hazards" in output
    assert specgate("deploy", "--config", path, "--accept-hazards")[0] == 0


def test_the_gateway_s_part_alone_can_t_be_deployed(specgate: Run, kimi: Callable[..., Path]) -> None:
    code, output = specgate("deploy", "--config", kimi())
    assert code == 2
    assert "the gateway's part alone" in output


def test_fetch_tells_what_a_node_lacks(specgate: Run, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # the laptop's models are named from there
    code, output = specgate("fetch", "--config", ROOT / "deploy" / "laptop.yaml", "--json")
    assert {each["path"]: each["missing"] for each in json.loads(output)}["models/tiny-kimi-eagle3"] == []
    assert code == 0
    code, output = specgate("fetch", "--config", ROOT / "deploy" / "h20-kimi-qwen.yaml")
    assert code == 1
    assert "/model_files/Kimi-K2.6" in output
    assert "the folder" in output


def test_a_gateway_that_is_open_to_others_is_not_deployed_unless_that_is_meant(
    specgate: Run, cluster: Callable[..., FakeClient], tmp_path: Path
) -> None:
    client, path = cluster({"status": "RUNNING"}), tmp_path / "own.yaml"
    args: dict[str, Any] = {
        "models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": {"kind": "sim"}}}},
    }
    application = {"name": "s", "import_path": "serve.app:build", "args": args}
    path.write_text(yaml.safe_dump({"http_options": {"host": "0.0.0.0"}, "applications": [application]}))
    code, output = specgate("deploy", "--config", path)
    assert (code, client.sent) == (2, []), output
    assert "anybody who reaches 0.0.0.0" in output
    code, output = specgate("doctor", "--config", path)
    assert code == 1
    assert "access.acknowledge_open" in output
    args["access"] = {"acknowledge_open": True}
    path.write_text(yaml.safe_dump({"http_options": {"host": "0.0.0.0"}, "applications": [application]}))
    assert specgate("deploy", "--config", path)[0] == 0
    assert specgate("doctor", "--config", path)[0] == 0
