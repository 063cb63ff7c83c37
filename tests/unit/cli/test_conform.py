"""`specgate conform` on the command line; the cases themselves are tests/component/test_conform.py's."""

import json
import socket
from collections.abc import Iterator

import pytest
from typer.testing import CliRunner

from serve.cli import app
from serve.launch.ports import free_port


@pytest.fixture
def taken() -> Iterator[int]:
    with socket.create_server(("127.0.0.1", 0)) as listener:
        yield listener.getsockname()[1]


def invoke(*arguments: str) -> tuple[int, str, str]:
    result = CliRunner().invoke(app, ["conform", *arguments], catch_exceptions=False)
    return result.exit_code, result.stdout, result.stderr


def test_an_engine_that_is_its_own_gateway_is_transparent() -> None:
    """The engine itself, asked as if it were a gateway: what reaches it is what was sent."""
    port = str(free_port())
    code, out, _ = invoke(f"http://127.0.0.1:{port}/v1", "--upstream-port", port, "--only", "strict,cookie", "--json")
    report = json.loads(out)
    assert [(row["case"], row["verdict"]) for row in report["cases"]] == [("strict", "pass"), ("cookie", "fail")]
    assert (code, report["green"]) == (1, False)


def test_a_green_run_ends_with_0_and_a_table() -> None:
    port = str(free_port())
    code, out, _ = invoke(f"http://127.0.0.1:{port}", "--upstream-port", port, "--only", "bytes", "--markdown")
    assert code == 0
    assert "| bytes | The body reaches the engine byte for byte. | pass | the same bytes |" in out


def test_without_a_format_each_case_is_one_line() -> None:
    port = str(free_port())
    code, out, told = invoke(f"http://127.0.0.1:{port}", "--upstream-port", port, "--only", "malformed-body,strict")
    assert f"waiting until http://127.0.0.1:{port} answers for the model 'conform'" in told
    lines = out.splitlines()
    assert code == 1
    assert [line.split()[:2] for line in lines[:-1]] == [["strict", "pass"], ["malformed-body", "fail"]]
    assert lines[-1] == "1 pass, 1 fail, 0 n/a"


def test_an_unknown_case_is_told_with_the_known_ones() -> None:
    code, _, reply = invoke("http://127.0.0.1:1", "--only", "nope")
    assert code == 2
    assert "no such case: nope" in reply


def test_security_cases_run_only_when_asked_for() -> None:
    port = str(free_port())
    arguments = (f"http://127.0.0.1:{port}", "--upstream-port", port, "--only", "strict,leak-credentials")
    assert invoke(*arguments)[0] == 2
    code, out, _ = invoke(*arguments, "--security")
    assert code == 1
    assert [line.split()[:2] for line in out.splitlines()[:-1]] == [["strict", "pass"], ["leak-credentials", "fail"]]


def test_an_api_s_cases_run_when_it_is_asked_for_and_do_not_apply_where_it_is_not_served() -> None:
    port = str(free_port())
    arguments = (f"http://127.0.0.1:{port}", "--upstream-port", port, "--only", "messages-usage,responses-usage")
    assert invoke(*arguments)[0] == 2
    code, out, _ = invoke(*arguments, "--api", "messages, responses", "--json")
    assert code == 0
    seen = [(row["case"], row["verdict"], row["seen"]) for row in json.loads(out)["cases"]]
    assert seen == [
        ("messages-usage", "n/a", "/v1/messages is HTTP 404"),
        ("responses-usage", "n/a", "/v1/responses is HTTP 404"),
    ]


def test_an_unknown_api_is_told_with_the_known_ones() -> None:
    code, _, reply = invoke("http://127.0.0.1:1", "--api", "telegraph")
    assert code == 2
    assert "no such API: telegraph; known: chat, messages, responses" in " ".join(reply.split())


def test_a_taken_port_is_told(taken: int) -> None:
    code, _, reply = invoke("http://127.0.0.1:1", "--upstream-port", str(taken))
    assert code == 2
    assert "choose another port" in " ".join(reply.split())
