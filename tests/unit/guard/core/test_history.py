"""History repair: malformed calls become JSON, valid ones stay byte for byte, ids and their results stay together."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.history import UNPARSED_KEY, completed, repair_history

OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda i: st.lists(i, max_size=3)),
    max_size=4,
)


def turn(arguments: Any, identity: str = "call_1", name: str = "bash") -> list[dict[str, Any]]:
    call = {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}
    return [
        {"role": "user", "content": "go"},
        {"role": "assistant", "content": None, "tool_calls": [call]},
        {"role": "tool", "tool_call_id": identity, "content": "done"},
    ]


def test_the_seeds_cut_call_is_completed_where_it_was_cut() -> None:
    cut = '{"command": "bash …/check-deps.sh", "description": "检查 CDP 依赖环境.'
    repair = repair_history(turn(cut), "fix")
    fixed = repair.messages[1]["tool_calls"][0]["function"]["arguments"]
    assert json.loads(fixed) == {"command": "bash …/check-deps.sh", "description": "检查 CDP 依赖环境."}
    assert (repair.arguments, repair.ids) == (1, 0)


@given(OBJECTS, st.booleans(), st.data())
def test_any_beginning_of_an_object_is_completed_and_begins_the_same(
    value: dict[str, Any], escape: bool, data: st.DataObject
) -> None:
    text = json.dumps(value, ensure_ascii=escape)
    cut = text[: data.draw(st.integers(1, len(text)))]
    fixed = completed(cut)
    assert isinstance(json.loads(fixed), dict)
    assert fixed.startswith(cut) or json.loads(fixed) == {UNPARSED_KEY: cut}


@given(st.text(max_size=30))
def test_any_text_becomes_an_object(text: str) -> None:
    assert isinstance(json.loads(completed(text)), dict)


@pytest.mark.parametrize("text", ["[1]", '"{}"', "{'a': 1}", "rm -rf", '{"a": 1}{"b": 2}', '{"a": NaN}'])
def test_what_is_no_beginning_of_an_object_is_kept_under_a_key(text: str) -> None:
    assert json.loads(completed(text)) == {UNPARSED_KEY: text}


@given(OBJECTS, st.sampled_from([None, 2]))
def test_valid_arguments_are_never_touched(value: dict[str, Any], indent: int | None) -> None:
    messages = turn(json.dumps(value, indent=indent))
    repair = repair_history(messages, "fix")
    assert repair.messages is messages
    assert repair.clean


def test_empty_arguments_become_an_empty_object() -> None:
    repair = repair_history(turn(""), "fix")
    assert repair.messages[1]["tool_calls"][0]["function"]["arguments"] == "{}"


def test_warning_counts_and_off_does_not_even_look() -> None:
    messages = turn('{"a')
    warned = repair_history(messages, "warn")
    assert warned.messages is messages
    assert warned.arguments == 1
    assert repair_history(messages, "off").clean


def test_the_request_itself_is_not_changed() -> None:
    messages = turn('{"a', "call_9")
    before = json.dumps(messages)
    repair_history(messages, "fix", kimi_ids=True)
    assert json.dumps(messages) == before


def test_kimi_ids_carry_the_name_and_count_over_the_conversation() -> None:
    messages = [*turn("{}", "functions.bash:0"), *turn("{}", "toolu_01", "mcp.read"), *turn("{}", "call_x")]
    repair = repair_history(messages, "fix", kimi_ids=True)
    ids = [message["tool_calls"][0]["id"] for message in repair.messages if message.get("tool_calls")]
    assert ids == ["functions.bash:0", "functions.mcp.read:1", "functions.bash:2"]
    assert [message["tool_call_id"] for message in repair.messages if message["role"] == "tool"] == ids
    assert repair.ids == 2
    assert repair_history(repair.messages, "fix", kimi_ids=True).clean


def test_an_id_that_a_client_uses_twice_refers_to_the_latest_call() -> None:
    messages = [*turn("{}", "call_1", "a"), *turn("{}", "call_1", "b")]
    repaired = repair_history(messages, "fix", kimi_ids=True).messages
    assert [each["tool_call_id"] for each in repaired if each["role"] == "tool"] == ["functions.a:0", "functions.b:1"]


@pytest.mark.parametrize(
    "odd", ["text", {"role": "assistant", "tool_calls": "x"}, {"tool_calls": [None, {"function": 3}]}]
)
def test_shapes_that_are_not_openais_are_left_to_the_engine(odd: Any) -> None:
    messages = [odd, {"role": "tool", "tool_call_id": 7}]
    assert repair_history(messages, "fix", kimi_ids=True).messages is messages
