"""A cluster file against its Serve config and its hardware: what ships passes, each mistake is told with its cure."""

import re
from collections.abc import Callable
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st

from policies import engine_args
from serve.config import yaml_files
from serve.errors import ConfigError
from serve.launch.check import CheckReport, Demand, check_file, place, why_unplaced
from serve.launch.cluster_file import Node, deployed_configs, local_path, nodes_of, shared_memory_gib, start_commands

ROOT = Path(__file__).parents[3]
CLUSTERS = [ROOT / "cluster.yaml", *sorted((ROOT / "deploy" / "cluster").glob("*.yaml"))]
Check = Callable[..., CheckReport]


@pytest.fixture(autouse=True)
def _from_the_root(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.chdir(ROOT)  # `file_mounts` count from where `ray up` is called
    monkeypatch.setattr(engine_args, "installed_engine", lambda: ("0.32.0", False))


@pytest.fixture
def check(tmp_path: Path) -> Check:
    """Check `cluster.yaml` with a layer of its own, and optionally one over the Serve config that it deploys."""

    def run(layer: dict[str, Any], served: dict[str, Any] | None = None) -> CheckReport:
        if served is not None:
            config = tmp_path / "config.yaml"
            base = ROOT / "deploy" / "h20-kimi-qwen.yaml"
            args = {"applications": [{"name": "specgate", "args": served}]}
            config.write_text(yaml.safe_dump({"extends": str(base), **args}))
            deploy = f"specgate deploy --config {config} --no-wait"
            start = yaml_files.read("cluster.yaml")["head_start_ray_commands"][1]
            layer = {"head_start_ray_commands": [start, deploy], **layer}
        path = tmp_path / "cluster.yaml"
        path.write_text(yaml.safe_dump({"extends": str(ROOT / "cluster.yaml"), **layer}))
        return check_file(path)

    return run


def errors(report: CheckReport) -> list[str]:
    return [f"{each.about}: {each.message}" for each in report.findings if each.level == "error"]


@pytest.mark.parametrize(("host", "is_refused"), [(None, False), ("0.0.0.0", False), ("127.0.0.8", True)])
def test_a_head_that_nobody_else_reaches_is_refused(tmp_path: Path, host: str | None, is_refused: bool) -> None:
    """Ray itself listens on all addresses where a Serve config names none."""
    served = yaml_files.read(ROOT / "deploy" / "h20-kimi-qwen.yaml") | {"http_options": {"host": host} if host else {}}
    (tmp_path / "served.yaml").write_text(yaml_files.dump(served))
    start = yaml_files.read("cluster.yaml")["head_start_ray_commands"][1]
    deploy = f"specgate deploy --config {tmp_path / 'served.yaml'}"
    layer = {"extends": str(ROOT / "cluster.yaml"), "head_start_ray_commands": [start, deploy]}
    (tmp_path / "cluster.yaml").write_text(yaml_files.dump(layer))
    told = [each for each in errors(check_file(tmp_path / "cluster.yaml")) if each.startswith("http_options.host")]
    assert bool(told) is is_refused


@pytest.mark.parametrize("path", CLUSTERS, ids=lambda path: path.stem)
def test_what_ships_works_but_for_its_placeholders(path: Path) -> None:
    report = check_file(path)
    assert errors(report) == []
    assert report.fits
    assert all(fit.estimate and fit.estimate.fits for fit in report.fits)
    assert any(each.level == "todo" for each in report.findings)
    assert not [each for each in report.findings if "RAY_AUTH_MODE" in each.message]


@pytest.mark.parametrize("overlay", ["k25", "k2-thinking-nvfp4", "qwen-one-node"])
def test_the_other_models_fit_the_same_nodes(check: Check, overlay: str) -> None:
    start = yaml_files.read("cluster.yaml")["head_start_ray_commands"][1]
    deploy = f"specgate deploy --config /etc/specgate/overlays/{overlay}.yaml"
    report = check({"head_start_ray_commands": [start, deploy]})
    assert errors(report) == []
    assert report.fits
    assert all(fit.estimate and fit.estimate.fits for fit in report.fits)


def test_of_two_configs_the_last_is_checked_and_the_other_told(check: Check) -> None:
    start = yaml_files.read("cluster.yaml")["head_start_ray_commands"][1]
    deploys = [f"specgate deploy -c /etc/specgate/overlays/{each}.yaml" for each in ("k25", "qwen-one-node")]
    report = check({"head_start_ray_commands": [start, *deploys]})
    assert report.config_path == Path("deploy/overlays/qwen-one-node.yaml")
    assert [each.message for each in report.findings if each.about == "head_start_ray_commands"] == [
        "`specgate deploy` of /etc/specgate/overlays/qwen-one-node.yaml replaces what "
        "/etc/specgate/overlays/k25.yaml has deployed; put all into one file"
    ]


def test_each_kimi_gets_a_node_and_both_qwen_share_one() -> None:
    placement = check_file(ROOT / "cluster.yaml").placement
    assert sorted(len(replicas) for name, replicas in placement.items() if name.startswith("worker")) == [1, 1, 5]


def test_the_file_itself_is_read() -> None:
    document = yaml_files.read(ROOT / "cluster.yaml")
    assert deployed_configs(document) == ["/etc/specgate/h20-kimi-qwen.yaml"]
    assert local_path(document, "/etc/specgate/overlays/k25.yaml") == Path("deploy/overlays/k25.yaml")
    assert [node.resources.get("GPU") for node in nodes_of(document)] == [0, 8, 8, 8]
    (worker,) = start_commands(document, "worker")
    assert worker.env["RAY_SERVE_ENABLE_HA_PROXY"] == "1"
    assert worker.options["address"] == "$RAY_HEAD_IP:6379"


@pytest.mark.parametrize(
    ("layer", "reply"),
    [
        ({"provider": {"worker_ips": None}}, r"provider\.worker_ips: required by Ray's launcher"),
        ({"available_node_types": {"a": {"node_config": {}}}}, "not supported for your own machines"),
        ({"dokcer": {}}, r"'dokcer' was unexpected"),
        ({"docker": {"container_name": None}}, "Ray's launcher rejects the file.*container"),
        ({"max_workers": "three"}, r"max_workers.*'three' is not of type 'integer'"),
        ({"file_mounts": {"/etc/specgate": "nowhere"}}, r"nowhere does not exist"),
        ({"worker_start_ray_commands": ["ray stop"]}, "no `ray start` among them"),
        (
            {"worker_start_ray_commands": ["ray start --address=$RAY_HEAD_IP:6379 --num-gpus=8"]},
            "RAY_SERVE_ENABLE_HA_PROXY=1 RAY_SERVE_THROUGHPUT_OPTIMIZED=1 must be set in front",
        ),
        ({"head_start_ray_commands": ["ray start --head"]}, "--autoscaling-config"),
        ({"head_start_ray_commands": ["ray start"]}, "needs --head"),
        ({"head_start_ray_commands": ["ray start --head"]}, "put RAY_enable_autoscaler_v2=0 in front"),
        ({"head_start_ray_commands": ["ray start --head"]}, "nothing would be served"),
        ({"docker": {"worker_run_options": ["--shm-size=160g"]}}, "`--gpus all`"),
        ({"docker": {"worker_run_options": ["--gpus all"]}}, "set --shm-size"),
        ({"docker": {"worker_run_options": ["--gpus all", "--shm-size=64g"]}}, "128 does not fit in --shm-size 64g"),
        ({"docker": {"run_options": []}}, r"/model_files/Kimi-K2\.6 is in no --volume"),
        ({"provider": {"worker_ips": ["192.0.2.10", "192.0.2.11"]}}, r"provider: 192\.0\.2\.10 stands twice"),
        ({"provider": {"worker_ips": ["192.0.2.11", "192.0.2.11"]}}, r"provider: 192\.0\.2\.11 stands twice"),
        ({"provider": {"worker_ips": ["192.0.2.11"]}}, "the pools ask for 24, the nodes have 8"),
    ],
    ids=str,
)
def test_a_mistake_in_the_cluster_file_is_told(check: Check, layer: dict[str, Any], reply: str) -> None:
    found = "\n".join(errors(check(layer)))
    assert re.search(reply, found), found


@pytest.mark.parametrize("role", ["head", "worker"])
def test_nodes_that_start_without_a_token_are_a_warning(check: Check, role: str) -> None:
    shared = yaml_files.read("cluster.yaml")["docker"]["run_options"]
    without = [option for option in shared if "RAY_AUTH_MODE" not in option]
    other = {"head": "worker", "worker": "head"}[role]
    options = yaml_files.read("cluster.yaml")["docker"][f"{other}_run_options"]
    report = check(
        {"docker": {"run_options": without, f"{other}_run_options": [*options, "--env RAY_AUTH_MODE=token"]}}
    )
    assert errors(report) == []
    assert [each.about for each in report.findings if "RAY_AUTH_MODE=token" in each.message] == [
        f"{role}_start_ray_commands"
    ]


def test_a_token_that_is_not_there_yet_is_told_with_the_command_that_makes_it(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    monkeypatch.setenv("HOME", str(tmp_path))
    (missing,) = [each for each in check_file(ROOT / "cluster.yaml").findings if "get-auth-token" in each.message]
    assert missing.level == "warning"
    (tmp_path / ".ray").mkdir()
    (tmp_path / ".ray" / "auth_token").write_text("secret")
    assert not [each for each in check_file(ROOT / "cluster.yaml").findings if "get-auth-token" in each.message]


def test_a_variable_that_docker_takes_from_its_caller_is_no_mistake(check: Check) -> None:
    shared = yaml_files.read("cluster.yaml")["docker"]["run_options"]
    assert errors(check({"docker": {"run_options": [*shared, "--env HF_TOKEN"]}})) == []


SPEC = ["models", "kimi-k2.6", "pools", "speculative"]


def at(path: list[str], value: Any) -> dict[str, Any]:
    for key in reversed(path):
        value = {key: value}
    return dict(value)


@pytest.mark.parametrize(
    ("served", "reply"),
    [
        (at([*SPEC, "ray_actor_options"], {"num_gpus": 4}), "the engine needs 8 GPUs and the replica asks for 4"),
        (at([*SPEC, "ray_actor_options", "resources"], {"h20_141gb": 8}), "8 h20_141gb, and no node offers any"),
        (at([*SPEC, "ray_actor_options"], {"num_gpus": 16}), "no node has more than 8"),
        (at(["models", "kimi-k2.6", "engine_args", "max-model-len"], 262144), "fewer than max-model-len 262,144"),
        (at([*SPEC, "autoscaling"], {"max_replicas": 2}), "is taken by other replicas"),
        (at(["models", "kimi-k2.6", "gramar"], "x"), "unknown key; did you mean `grammar`"),
    ],
    ids=str,
)
def test_a_mistake_in_what_is_served_is_told(check: Check, served: dict[str, Any], reply: str) -> None:
    found = "\n".join(errors(check({}, served)))
    assert reply in found


def test_weights_that_do_not_fit_are_told(check: Check) -> None:
    half = {"num_gpus": 4, "resources": {"h20_96gb": 4}}
    served = at(SPEC, {"ray_actor_options": half, "engine_args": {"tensor-parallel-size": 4}})
    assert "GiB of weights and" in "\n".join(errors(check({}, served)))


def test_a_model_that_nobody_published_is_a_warning(check: Check) -> None:
    served = at([*SPEC, "engine_args"], {"model": "/model_files/own-model"})
    report = check({}, served)
    assert errors(report) == []
    assert any("no memory estimate" in each.message for each in report.findings)


def pipeline(check: Check, bundles: list[dict[str, int]], **settings: Any) -> list[str]:
    """What is wrong with Kimi over two nodes in these bundles."""
    wide = {"engine_args": {"pipeline-parallel-size": 2, "distributed-executor-backend": "ray"}}
    pool = {**wide, "placement_group_bundles": bundles, "placement_group_strategy": "PACK", **settings}
    return errors(check({}, at(["models", "kimi-k2.6", "pools"], {"standard": None, "speculative": pool})))


def test_a_pipeline_over_two_nodes_is_a_placement_group_of_single_gpus(check: Check) -> None:
    single = {"CPU": 1, "GPU": 1, "h20_96gb": 1}
    replica = {"num_cpus": 1, "num_gpus": None, "resources": None}  # the engine's own processes take the GPUs
    assert pipeline(check, [single] * 16, ray_actor_options=replica) == []
    reply = pipeline(check, [single] * 16)
    assert any("must be a subset of the first bundle" in each for each in reply)
    whole = {"CPU": 8, "GPU": 8, "h20_96gb": 8}
    reply = pipeline(check, [whole] * 2, ray_actor_options=replica)
    assert any("vLLM takes one GPU from each bundle" in each for each in reply)


def test_an_engine_that_asks_for_fewer_gpus_than_it_uses_is_told(check: Check) -> None:
    wide = {"engine_args": {"pipeline-parallel-size": 2}}
    assert "the engine needs 16 GPUs" in "\n".join(errors(check({}, at(SPEC, wide))))


def test_a_start_command_that_can_t_be_read_is_told(check: Check) -> None:
    with pytest.raises(ConfigError, match="is a JSON mapping of names"):
        check({"worker_start_ray_commands": ["ray start --address=x --resources='{h20}'"]})
    with pytest.raises(ConfigError, match="can't be read"):
        check({"worker_start_ray_commands": ["ray start 'unfinished"]})


def test_the_report_is_plain_values() -> None:
    report = check_file(ROOT / "cluster.yaml").to_dict()
    assert report["ok"]
    assert report["memory"][0]["fits"]
    assert report["nodes"][1]["resources"]["GPU"] == 8


@pytest.mark.parametrize(
    ("words", "gib"),
    [
        (("--shm-size=160g",), 160),
        (("--shm-size", "512m"), 0.5),
        (("--shm-size='1024b'",), 2**-20),
        (("--ipc=host", "--shm-size=1g"), None),
        (("--gpus", "all"), None),
    ],
)
def test_shared_memory_is_read_as_docker_reads_it(words: tuple[str, ...], gib: float | None) -> None:
    assert shared_memory_gib(words) == gib


def gpus(number: float, name: str = "pool") -> Demand:
    return Demand(name, ({"GPU": number},))


NODES = [Node("a", {"GPU": 8.0}), Node("b", {"GPU": 8.0})]


def test_small_engines_share_a_node_so_that_a_whole_one_stays_free() -> None:
    placement = place([gpus(2, "small"), gpus(2, "small"), gpus(8, "large")], NODES)
    assert placement.unplaced == ()
    assert sorted(placement.on.values()) == [("large",), ("small", "small")]


def test_a_replica_does_not_straddle_nodes() -> None:
    placement = place([gpus(6), gpus(6), gpus(4, "last")], NODES)
    assert [each.name for each in placement.unplaced] == ["last"]
    assert why_unplaced(gpus(4), NODES) == "every node that is large enough is taken by other replicas"


def test_a_placement_group_may() -> None:
    spread = Demand("pp2", ({"GPU": 8.0}, {"GPU": 8.0}), spread=True)
    assert place([spread], NODES).on == {"a": ("pp2",), "b": ("pp2",)}
    packed = Demand("pp2", ({"GPU": 8.0}, {"GPU": 8.0}))
    assert place([packed], NODES).unplaced == (packed,)
    assert why_unplaced(packed, NODES) == "it asks for 16 GPU on one node, and no node has more than 8"


def test_a_resource_that_no_node_has_is_named() -> None:
    assert why_unplaced(Demand("x", ({"h20_141gb": 1.0},)), NODES) == "it asks for 1 h20_141gb, and no node offers any"


def test_cpus_that_nobody_stated_are_not_limited() -> None:
    assert place([Demand("x", ({"CPU": 500.0},))], [Node("a", {})]).unplaced == ()
    assert place([Demand("x", ({"CPU": 500.0},))], [Node("a", {"CPU": 4.0})]).unplaced != ()


@given(st.lists(st.integers(1, 8), max_size=12), st.integers(1, 4))
def test_no_node_is_filled_beyond_what_it_has_and_nobody_is_lost(sizes: list[int], count: int) -> None:
    demands = [gpus(size, f"{place_}:{size}") for place_, size in enumerate(sizes)]
    placement = place(demands, [Node(str(each), {"GPU": 8.0}) for each in range(count)])
    for names in placement.on.values():
        assert sum(int(name.split(":")[1]) for name in names) <= 8
    placed = [name for names in placement.on.values() for name in names]
    assert sorted(placed + [each.name for each in placement.unplaced]) == sorted(each.name for each in demands)
