"""Running everything on one machine: what is told when it can't."""

import os
import threading
from pathlib import Path

import pytest

from serve.config.gateway import GatewayConfig
from serve.errors import ConfigError
from serve.launch.local import cause_of, cluster, node_environment, prepared_environment, while_alive
from serve.launch.ports import free_port


def test_our_own_error_is_told_without_the_traceback_around_it() -> None:
    message = "Traceback ...\n  raise ConfigError(x)\nserve.errors.ConfigError: the parser 'x' is not known\n"
    assert cause_of(message) == "the parser 'x' is not known"


def test_another_error_is_told_with_its_type_and_without_the_traceback() -> None:
    message = (
        "The deployment failed to start 3 times in a row. Error:\nray::x (pid=1)\n  File ...\n    raise\n"
        "RuntimeError: Traceback (most recent call last):\n  File ...\nvllm.Error: first\n\n"
        "The above exception was the direct cause\n  File ...\n"
        "pydantic.ValidationError: 1 error for VllmConfig\n  No available memory [type=value]\n"
    )
    assert cause_of(message) == "pydantic.ValidationError: 1 error for VllmConfig\n  No available memory [type=value]"


def test_what_is_no_traceback_is_told_whole() -> None:
    assert cause_of("1 replica waits. Resources required: {}") == "1 replica waits. Resources required: {}"


def environments(folder: Path, count: int) -> list[dict[str, str]]:
    for number in range(count):
        (folder / str(number)).mkdir()
    return [node_environment(str(folder / str(number))) for number in range(count)]


def test_a_machine_too_busy_for_ray_to_start_is_told_so(monkeypatch: pytest.MonkeyPatch) -> None:
    def init(**_: object) -> None:
        raise Exception("The current node timed out during startup.")

    monkeypatch.setattr("ray.init", init)
    config = GatewayConfig.load(Path(__file__).parents[3] / "deploy" / "sim.yaml")
    with (
        pytest.raises(ConfigError, match=r"busy machine; try again: The current node"),
        cluster(config, free_port(), lambda _: None),
    ):
        pass


def test_two_gateways_share_neither_files_nor_ports(tmp_path: Path) -> None:
    many = environments(tmp_path, 4)
    own = {name for name in many[0] if len({each[name] for each in many}) == len(many)}
    chosen = {name for name in many[0] if name.endswith("_PORT") or str(tmp_path) in many[0][name]}
    assert own == chosen


def test_every_port_and_file_of_ray_serve_is_the_gateways_own(tmp_path: Path) -> None:
    constants = pytest.importorskip("ray.serve._private.constants")
    shared = {name for name, value in vars(constants).items() if name.isupper() and str(value).startswith("/tmp/")}
    shared |= {name for name in vars(constants) if name.startswith("RAY_SERVE_") and name.endswith("_PORT")}
    unused = {name for name in shared if "_WORKER_PROXY_" in name or name.endswith("_GRPC_PORT")}
    assert shared - unused <= set(environments(tmp_path, 1)[0])


def test_gateway_replicas_get_ports_below_those_that_the_system_hands_out(tmp_path: Path) -> None:
    (chosen,) = environments(tmp_path, 1)
    first, last = (int(chosen[f"RAY_SERVE_DIRECT_INGRESS_{which}_HTTP_PORT"]) for which in ("MIN", "MAX"))
    others = {int(value) for name, value in chosen.items() if name.endswith("_PORT")} - {first, last}
    assert 20_000 <= first < last < 30_000
    assert not any(first <= port <= last for port in others)


def test_the_folder_of_haproxys_files_is_gone_at_the_end(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(os, "environ", dict(os.environ))
    with prepared_environment():
        folder = Path(os.environ["RAY_SERVE_HAPROXY_SERVER_STATE_BASE"])
        assert folder.is_dir()
    assert not folder.exists()


def test_an_answer_of_ray_is_waited_for() -> None:
    answers = threading.Event()
    threading.Timer(0.3, answers.set).start()

    def ask() -> None:
        answers.wait()

    assert while_alive(lambda: True, ask)
    assert answers.is_set()


def test_nobody_waits_for_a_ray_that_has_died() -> None:
    died, never = threading.Event(), threading.Event()

    def ask() -> None:
        died.set()  # with a question before it
        never.wait()

    assert not while_alive(lambda: not died.is_set(), ask)
    never.set()


def test_what_fails_in_ray_is_raised_where_it_is_waited_for() -> None:
    def ask() -> None:
        raise ConfigError("the pool could not start")

    with pytest.raises(ConfigError, match="could not start"):
        while_alive(lambda: True, ask)
