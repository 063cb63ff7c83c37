"""History repair: malformed calls become JSON, valid ones stay byte for byte, ids and their results stay together."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.history import UNPARSED_KEY, HistoryRepair, completed

OBJECTS = st.dictionaries(
    st.text(max_size=5),
    st.recursive(st.none() | st.booleans() | st.integers() | st.text(max_size=8), lambda i: st.lists(i, max_size=3)),
    max_size=4,
)


def call(arguments: Any, identity: str = "call_1", name: str = "bash") -> dict[str, Any]:
    return {"id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def test_the_seeds_cut_call_is_completed_where_it_was_cut() -> None:
    cut = '{"command": "bash …/check-deps.sh", "description": "检查 CDP 依赖环境.'
    repair = HistoryRepair()
    fixed = repair.call(call(cut))["function"]["arguments"]
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


@given(st.text(max_size=30) | st.text('{}[]":,\\u1t \n', max_size=30))
def test_any_text_becomes_an_object(text: str) -> None:
    assert isinstance(json.loads(completed(text)), dict)


@pytest.mark.parametrize("text", ["[1]", '"a"', "{'a': 1}", "rm -rf", '{"a": 1}{"b": 2}', '{"a": NaN}'])
def test_what_is_no_beginning_of_an_object_is_kept_under_a_key(text: str) -> None:
    assert json.loads(completed(text)) == {UNPARSED_KEY: text}


@given(OBJECTS, st.sampled_from([None, 2]))
def test_valid_arguments_are_never_touched(value: dict[str, Any], indent: int | None) -> None:
    sound = call(json.dumps(value, indent=indent))
    repair = HistoryRepair()
    assert repair.call(sound) is sound
    assert repair.clean


@pytest.mark.parametrize("nothing", ["", " ", "null", "None", "undefined", "[]", '""', '"{}"', "\nnull "])
def test_any_spelling_of_no_arguments_becomes_an_empty_object(nothing: str) -> None:
    repair = HistoryRepair()
    assert repair.call(call(nothing))["function"]["arguments"] == "{}"
    assert repair.arguments == 1


@pytest.mark.parametrize("half", ["\\ud83d", "\\ude00 x", "\\u00e9"])
def test_half_a_surrogate_pair_in_arguments_is_no_fault(half: str) -> None:
    sound = call(f'{{"a": "{half}"}}')
    assert HistoryRepair().call(sound) is sound
    assert completed(f'{{"a": "{half}') == f'{{"a": "{half}"}}'


@pytest.mark.parametrize("digits", [4301, 9_999, 50_000])
@pytest.mark.parametrize("before", [0, 1, 4299])
def test_a_number_too_long_for_engines_is_kept_as_text(digits: int, before: int) -> None:
    text = f'{{"a": {" " * before}{"1" * digits}}}'
    assert json.loads(completed(text)) == {UNPARSED_KEY: text}
    repair = HistoryRepair()
    repair.call(call(text))
    assert repair.arguments == 1


@pytest.mark.parametrize("value", ["1" * 4300, "[" + ",".join(["1" * 4000] * 9) + "]", f'"{"1" * 9_000}"'])
def test_long_digits_that_engines_read_are_no_fault(value: str) -> None:
    sound = call(f'{{"a": {value}}}')
    assert HistoryRepair().call(sound) is sound


@pytest.mark.parametrize("text", ['{"a": ' + "[" * 2_000, '{"a": "' + "x" * 100_000, '{"a": [' + "1," * 100_000])
def test_what_would_take_long_to_complete_is_kept_whole(text: str) -> None:
    assert json.loads(completed(text)) == {UNPARSED_KEY: text}


def test_the_request_itself_is_not_changed() -> None:
    cut = call('{"a', "call_9")
    before = json.dumps(cut)
    HistoryRepair(kimi_ids=True).call(cut)
    assert json.dumps(cut) == before


@pytest.mark.parametrize("odd", [None, "text", [], {"function": 3}, {"type": "function"}])
def test_shapes_that_are_not_openais_are_left_to_the_engine(odd: Any) -> None:
    assert HistoryRepair(kimi_ids=True).call(odd) is odd
