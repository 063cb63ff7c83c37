"""The history inside a body: only what is at fault is written anew."""

import asyncio
import json
import threading
from typing import Any

import pytest

from serve.errors import InvalidRequestError
from serve.guard.core import HistoryRepair
from serve.guard.history import repair_history
from serve.http1.turns import LONG_RAW_BYTES
from serve.request.patch import BodyPatch

CUT = '{"command": "ls", "why": "check'


def body(arguments: str, identity: str = "functions.bash:0") -> bytes:
    call = {"id": identity, "type": "function", "function": {"name": "bash", "arguments": arguments}}
    messages: list[dict[str, Any]] = [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": "done"},
    ]
    return json.dumps({"model": "m", "messages": messages, "temperature": 1.50}, indent=1).encode()


def repaired(sent: bytes, mode: Any, grammar: str = "hermes") -> tuple[bytes, HistoryRepair]:
    patch = BodyPatch()
    found = asyncio.run(repair_history(patch, sent, mode, grammar))
    return patch.apply(sent), found


def call_in(sent: bytes) -> Any:
    return json.loads(sent)["messages"][1]["tool_calls"][0]


@pytest.mark.parametrize("mode", ["off", "warn", "fix"])
@pytest.mark.parametrize("arguments", ["{}", '{"a" : [1.0 ,2]}', '{"城": "\\u4eac"}'])
def test_a_history_in_order_keeps_every_byte(mode: Any, arguments: str) -> None:
    sent = body(arguments)
    got, found = repaired(sent, mode, "kimi_k2")
    assert got is sent
    assert found.clean


def test_a_cut_call_is_completed_and_everything_else_stays() -> None:
    got, found = repaired(body(CUT), "fix")
    assert json.loads(call_in(got)["function"]["arguments"]) == {"command": "ls", "why": "check"}
    assert found.arguments == 1
    before, after = json.loads(body(CUT)), json.loads(got)
    before["messages"][1] = after["messages"][1]
    assert before == after


def test_warn_counts_and_changes_nothing() -> None:
    sent = body(CUT)
    got, found = repaired(sent, "warn")
    assert got is sent
    assert found.arguments == 1


def test_kimis_ids_get_their_form_in_the_call_and_in_its_result() -> None:
    got, found = repaired(body("{}", "call_abc"), "fix", "kimi_k2")
    assert call_in(got)["id"] == json.loads(got)["messages"][2]["tool_call_id"] == "functions.bash:0"
    assert found.ids == 1


@pytest.mark.parametrize("identity", ["call_abc", "functions.bash:0", "toolu_01A09q90qw90lq917835", "abcdefghi\n", ""])
def test_mistrals_ids_are_nine_letters_and_digits_in_the_call_and_in_its_result(identity: str) -> None:
    got, found = repaired(body("{}", identity), "fix", "mistral")
    assert call_in(got)["id"] == json.loads(got)["messages"][2]["tool_call_id"] == "000000000"
    assert found.ids == 1
    sent = body("{}", "Zx90aB3c7")
    assert repaired(sent, "fix", "mistral")[0] is sent


@pytest.mark.parametrize(
    "sent",
    [
        b'{"model":"m"}',
        b'{"model":"m","messages":[]}',
        b'{"messages":[{"tool_calls":null}]}',
        b'{"messages":["tool_call",{"tool_calls":"x"},{"tool_calls":[null,{"function":3}]},{"role":"tool","tool_call_id":7}]}',
        b'{"messages":[{"tool_calls":[{"x":1e999}]}]}',
    ],
)
def test_a_body_without_calls_is_left_alone(sent: bytes) -> None:
    assert repaired(sent, "fix", "kimi_k2")[0] is sent


@pytest.mark.parametrize("arguments", [b'{"a": [1.0]}', b"null", b"[]"])
def test_arguments_that_are_no_text_stay_and_the_id_gets_its_form(arguments: bytes) -> None:
    call = b'{"x":[1e999],"id":"call_1","function":{ "arguments":%b,"name":"f"}}' % arguments
    got, found = repaired(b'{"messages":[{"tool_calls":[%b]}]}' % call, "fix", "kimi_k2")
    assert got == b'{"messages":[{"tool_calls":[%b]}]}' % call.replace(b"call_1", b"functions.f:0")
    assert (found.arguments, found.ids) == (0, 1)


def test_what_is_not_at_fault_keeps_its_bytes() -> None:
    cut = b'{"id":"a","function":{"name":"f","arguments":"{"}}'
    sound = b'{ "id":"b","x":1.50, "function":{"name":"f","arguments":"{}"}}'
    content = rb'"content":[ 1e999, "\u00e9"]'
    message = b'{"role":"assistant",%b,"tool_calls":[%b,%b]}' % (content, cut, sound)
    sent = b'{"model":"m","messages":[{},%b], "top_p":1.0}' % message
    got, _ = repaired(sent, "fix")
    assert all(part in got for part in (content, sound, b'"top_p":1.0'))
    assert json.loads(call_in(got)["function"]["arguments"]) == {}


@pytest.mark.parametrize(
    "call",
    [b'{"function":{"name":"f","arguments":"\xff"}}', b'{"id":"\xc3","function":{}}', b'{"x":%b' % (b"[" * 5_000)],
)
def test_a_call_that_no_decoder_reads_is_400(call: bytes) -> None:
    with pytest.raises(InvalidRequestError) as caught:
        repaired(b'{"messages":[{"tool_calls":[%b]}]}' % call, "fix", "kimi_k2")
    assert caught.value.code == "invalid_json"


async def test_other_tasks_run_while_many_calls_are_repaired() -> None:
    turns = 0

    async def other() -> None:
        nonlocal turns
        while True:
            turns += 1
            await asyncio.sleep(0)

    task = asyncio.create_task(other())
    calls = [{"id": "x", "function": {"name": "f", "arguments": CUT}}] * 3_000
    sent = json.dumps({"messages": [{"role": "assistant", "tool_calls": calls}]}).encode()
    found = await repair_history(BodyPatch(), sent, "fix", "kimi_k2")
    task.cancel()
    assert (found.arguments, found.ids) == (3_000, 3_000)
    assert turns > 1


@pytest.mark.parametrize("place", ["message", "call", "function"])
def test_a_broken_call_among_thousands_of_members_is_left_to_the_engine(place: str) -> None:
    members = {f"k{number}": 0 for number in range(20_000)}
    function = {"name": "bash", "arguments": CUT, **(members if place == "function" else {})}
    call = {"id": "c", "type": "function", "function": function, **(members if place == "call" else {})}
    message = {"role": "assistant", "tool_calls": [call], **(members if place == "message" else {})}
    sent = json.dumps({"model": "m", "messages": [message]}).encode()
    assert repaired(sent, "fix")[0] == sent


def test_arguments_of_thousands_of_members_are_kept_whole() -> None:
    arguments = '{"a": 1' + ', "b": 2' * 20_000
    sent, repair = repaired(body(arguments), "fix")
    assert repair.arguments == 1
    assert json.loads(call_in(sent)["function"]["arguments"]) == {"_unparsed_arguments": arguments}


def test_a_long_history_is_repaired_beside_the_event_loop(monkeypatch: pytest.MonkeyPatch) -> None:
    threads: set[threading.Thread] = set()

    def call(self: HistoryRepair, given: Any) -> Any:
        threads.add(threading.current_thread())
        return repair(self, given)

    repair = HistoryRepair.call
    monkeypatch.setattr(HistoryRepair, "call", call)
    arguments = '{"command": "' + "x" * LONG_RAW_BYTES
    got, found = repaired(body(arguments), "fix")
    assert found.arguments == 1
    assert json.loads(call_in(got)["function"]["arguments"]) == {"_unparsed_arguments": arguments}
    assert threading.main_thread() not in threads
    repaired(body(CUT), "fix")
    assert threading.main_thread() in threads


def conversation(*messages: Any) -> bytes:
    return json.dumps({"model": "m", "messages": list(messages)}).encode()


def asking(*calls: tuple[Any, str]) -> dict[str, Any]:
    made = [
        {"id": identity, "type": "function", "function": {"name": name, "arguments": "{}"}} for identity, name in calls
    ]
    return {"role": "assistant", "content": None, "tool_calls": made}


def result(identity: Any, text: str) -> dict[str, Any]:
    return {"role": "tool", "tool_call_id": identity, "content": text}


def ids_in(sent: bytes) -> list[Any]:
    found: list[Any] = []
    for message in json.loads(sent)["messages"]:
        found += [call["id"] for call in message.get("tool_calls") or ()]
        found += [message["tool_call_id"]] if "tool_call_id" in message else []
    return found


@pytest.mark.parametrize("identity", ["grep:3", "", 7])
def test_results_of_calls_with_one_id_go_to_them_in_order(identity: Any) -> None:
    sent = conversation(asking((identity, "a"), (identity, "b")), result(identity, "A"), result(identity, "B"))
    got, found = repaired(sent, "fix", "kimi_k2")
    assert ids_in(got) == ["functions.a:0", "functions.b:1"] * 2
    assert found.ids == 2


def test_results_without_an_id_go_to_the_calls_without_one() -> None:
    call = {"function": {"name": "a", "arguments": "{}"}}
    sent = conversation({"role": "assistant", "tool_calls": [call, call]}, {"role": "tool"}, {"role": "tool"})
    got, _ = repaired(sent, "fix", "kimi_k2")
    assert ids_in(got) == ["functions.a:0", "functions.a:1"] * 2


def test_calls_of_one_turn_in_several_messages_are_answered_in_order() -> None:
    sent = conversation(asking(("x", "a")), asking(("x", "a")), result("x", "A"), result("x", "B"))
    got, _ = repaired(sent, "fix", "kimi_k2")
    assert ids_in(got) == ["functions.a:0", "functions.a:1"] * 2


def test_a_new_id_is_none_that_stays_later_or_that_a_lost_call_had() -> None:
    sent = conversation(
        result("functions.a:0", "lost"), asking(("call_1", "a")), result("call_1", "A"),
        asking(("functions.a:1", "a")), result("functions.a:1", "B"),
    )  # fmt: skip
    got, found = repaired(sent, "fix", "kimi_k2")
    assert ids_in(got) == ["functions.a:0", "functions.a:2", "functions.a:2", "functions.a:1", "functions.a:1"]
    assert found.ids == 1


def test_ids_of_other_models_stay_as_they_are() -> None:
    sent = conversation(asking(("x", "a"), ("x", "b")), result("x", "A"))
    assert repaired(sent, "fix")[0] is sent


def test_no_arguments_in_any_spelling_become_an_empty_object() -> None:
    got, found = repaired(body("null"), "fix", "kimi_k2")
    assert call_in(got)["function"]["arguments"] == "{}"
    assert (found.arguments, found.ids) == (1, 0)
