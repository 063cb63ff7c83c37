"""The history inside a body: only what is at fault is written anew."""

import json
from typing import Any

import pytest

from serve.guard.history import repair_body

CUT = '{"command": "ls", "why": "check'


def body(arguments: str, identity: str = "functions.bash:0") -> bytes:
    call = {"id": identity, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": "done"},
    ]
    return json.dumps({"model": "m", "messages": messages, "temperature": 1.50}, indent=1).encode()


def call_in(sent: bytes) -> Any:
    return json.loads(sent)["messages"][1]["tool_calls"][0]


@pytest.mark.parametrize("mode", ["off", "warn", "fix"])
@pytest.mark.parametrize("arguments", ["{}", '{"a" : [1.0 ,2]}', '{"城": "\\u4eac"}'])
def test_a_history_in_order_keeps_every_byte(mode: Any, arguments: str) -> None:
    sent = body(arguments)
    got, found = repair_body(sent, mode, kimi_ids=True)
    assert got is sent
    assert found.clean


def test_a_cut_call_is_completed_and_everything_else_stays() -> None:
    got, found = repair_body(body(CUT), "fix", kimi_ids=False)
    assert json.loads(call_in(got)["function"]["arguments"]) == {"command": "ls", "why": "check"}
    assert found.arguments == 1
    before, after = json.loads(body(CUT)), json.loads(got)
    before["messages"][1] = after["messages"][1]
    assert before == after


def test_warn_counts_and_changes_nothing() -> None:
    sent = body(CUT)
    got, found = repair_body(sent, "warn", kimi_ids=False)
    assert got is sent
    assert found.arguments == 1


def test_kimis_ids_get_their_form_in_the_call_and_in_its_result() -> None:
    got, found = repair_body(body("{}", "call_abc"), "fix", kimi_ids=True)
    assert call_in(got)["id"] == json.loads(got)["messages"][2]["tool_call_id"] == "functions.bash:0"
    assert found.ids == 1


@pytest.mark.parametrize(
    "sent", [b'{"model":"m"}', b'{"model":"m","messages":[]}', b'{"messages":[{"tool_calls":null}]}']
)
def test_a_body_without_calls_is_left_alone(sent: bytes) -> None:
    assert repair_body(sent, "fix", kimi_ids=True)[0] is sent
