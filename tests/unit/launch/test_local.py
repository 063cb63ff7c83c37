"""Running everything on one machine: what is told when it can't."""

import socket

import pytest

from serve.errors import ConfigError
from serve.launch.local import cause_of, free_port, node_environment, require_free


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


def test_a_taken_port_is_told_with_the_way_out() -> None:
    with socket.create_server(("127.0.0.1", 0)) as taken, pytest.raises(ConfigError, match="SPECGATE_PORT"):
        require_free(taken.getsockname()[1])


def test_a_free_port_is_free() -> None:
    require_free(free_port())


def test_two_gateways_share_neither_files_nor_ports() -> None:
    many = [node_environment(f"/tmp/{n}") for n in range(20)]
    own = {name for name in many[0] if len({each[name] for each in many}) > 1}
    chosen = {name for name in many[0] if name.endswith("_PORT") or "/tmp" in many[0][name]}
    assert own == chosen


def test_gateway_replicas_get_ports_below_those_that_the_system_hands_out() -> None:
    chosen = node_environment("/tmp/a")
    first, end = (int(chosen[f"RAY_SERVE_DIRECT_INGRESS_{which}_HTTP_PORT"]) for which in ("MIN", "MAX"))
    assert 20_000 <= first < end <= 30_000
