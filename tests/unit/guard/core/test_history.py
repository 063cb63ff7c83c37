"""History repair: malformed calls become JSON, valid ones stay byte for byte, ids and their results stay together.

Of Kimi's ids each call has its own, each result that of its call, and a conversation in order keeps all of them.
"""

import json
from typing import Any, NamedTuple

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.history import ID_FORMS, UNPARSED_KEY, HistoryIds, HistoryRepair, completed

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
    HistoryRepair(ID_FORMS["kimi_k2"]).call(cut)
    assert json.dumps(cut) == before


@pytest.mark.parametrize("odd", [None, "text", [], {"function": 3}, {"type": "function"}])
def test_shapes_that_are_not_openais_are_left_to_the_engine(odd: Any) -> None:
    assert HistoryRepair(ID_FORMS["kimi_k2"]).call(odd) is odd


class Call(NamedTuple):
    id: str
    name: str = "bash"


class Result(NamedTuple):
    id: str


class Turn(NamedTuple):
    """Anything between two turns, such as a question."""


Item = Call | Result | Turn


def repaired(items: list[Item], grammar: str = "kimi_k2") -> list[Item]:
    ids = HistoryIds(ID_FORMS[grammar])
    for item in items:
        if isinstance(item, Call):
            ids.note_call(item.id, item.name)
        elif isinstance(item, Result):
            ids.note_result(item.id)
    made: list[Item] = []
    between = True
    for item in items:
        if isinstance(item, Call):
            if between:
                ids.begin_turn()
            between = False
            made.append(Call(ids.call(item.id, item.name), item.name))
        else:
            between = True
            made.append(Result(ids.result(item.id)) if isinstance(item, Result) else item)
    return made


def answers(items: list[Item]) -> list[int | None]:
    """Which call each result answers, as its place: of the latest turn's calls of its id the next one, or the last."""
    latest: dict[str, list[int]] = {}
    answered: dict[str, int] = {}
    found: list[int | None] = []
    turn: set[str] = set()
    for place, item in enumerate(items):
        if isinstance(item, Call):
            if item.id not in turn:
                latest[item.id], answered[item.id] = [], 0
                turn.add(item.id)
            latest[item.id].append(place)
        else:
            turn = set()
        if isinstance(item, Result):
            calls = latest.get(item.id)
            found.append(calls[min(answered[item.id], len(calls) - 1)] if calls else None)
            answered[item.id] = answered.get(item.id, 0) + 1
    return found


NAMES = ["bash", "grep", "mcp.read"]
IDS = st.one_of(
    st.builds("functions.{}:{}".format, st.sampled_from(NAMES), st.integers(0, 4)),
    st.sampled_from(["", "call_1", "call_2", "grep:3", "functions.bash", "functions_bash_0", "Zx90aB3c7", "000000001"]),
)
ITEMS = st.lists(st.builds(Call, IDS, st.sampled_from(NAMES)) | st.builds(Result, IDS) | st.just(Turn()), max_size=14)


def has_the_form(call: Call, grammar: str) -> bool:
    if grammar == "mistral":
        return len(call.id) == 9 and call.id.isascii() and call.id.isalnum()
    return call.id.rpartition(":")[0] == f"functions.{call.name}"


@pytest.mark.parametrize("grammar", ID_FORMS)
@given(ITEMS)
def test_every_call_has_an_id_of_its_own_and_every_result_that_of_its_call(grammar: str, items: list[Item]) -> None:
    made = repaired(items, grammar)
    ids = [item.id for item in made if isinstance(item, Call)]
    assert len(set(ids)) == len(ids)
    assert all(has_the_form(item, grammar) for item in made if isinstance(item, Call))
    given_results = [item for item in items if isinstance(item, Result)]
    results = [item for item in made if isinstance(item, Result)]
    for meant, before, after in zip(answers(items), given_results, results, strict=True):
        if meant is None:
            assert after == before
        else:
            call = made[meant]
            assert isinstance(call, Call)
            assert after.id == call.id


@given(ITEMS)
def test_a_repaired_conversation_is_in_order(items: list[Item]) -> None:
    made = repaired(items)
    assert repaired(made) == made


@given(ITEMS)
def test_a_result_whose_call_is_gone_becomes_no_other_calls(items: list[Item]) -> None:
    gone = [item.id for item, meant in zip([i for i in items if isinstance(i, Result)], answers(items), strict=True)
            if meant is None]  # fmt: skip
    new = {after.id for before, after in zip(items, repaired(items), strict=True)
           if isinstance(before, Call) and isinstance(after, Call) and before.id != after.id}  # fmt: skip
    assert new.isdisjoint(gone)


@pytest.mark.parametrize(
    ("items", "ids"),
    [
        ([Call("functions.bash:0"), Call("toolu_01", "mcp.read"), Call("call_x")],
         ["functions.bash:0", "functions.mcp.read:1", "functions.bash:2"]),
        ([Call("grep:3", "grep"), Call("grep:3", "grep"), Result("grep:3"), Result("grep:3")],
         ["functions.grep:0", "functions.grep:1", "functions.grep:0", "functions.grep:1"]),
        ([Call("functions.bash:1"), Call("call_x"), Result("call_x"), Result("functions.bash:1")],
         ["functions.bash:1", "functions.bash:2", "functions.bash:2", "functions.bash:1"]),
        ([Call("call_x"), Result("call_x"), Call("functions.bash:0"), Result("functions.bash:0")],
         ["functions.bash:1", "functions.bash:1", "functions.bash:0", "functions.bash:0"]),
        ([Result("functions.bash:0"), Call("call_1"), Result("call_1")],
         ["functions.bash:0", "functions.bash:1", "functions.bash:1"]),
        ([Call("functions.bash:0"), Result("functions.bash:0"), Call("functions.bash:0"), Result("functions.bash:0")],
         ["functions.bash:0", "functions.bash:0", "functions.bash:1", "functions.bash:1"]),
        ([Call("call_1", "a"), Result("call_1"), Turn(), Call("call_1", "b"), Result("call_1")],
         ["functions.a:0", "functions.a:0", "functions.b:1", "functions.b:1"]),
        ([Call("call_1", "a"), Turn(), Call("call_1", "b"), Result("call_1")],
         ["functions.a:0", "functions.b:1", "functions.b:1"]),
        ([Call("x"), Call("y"), Result("y"), Result("x"), Result("x")],
         ["functions.bash:0", "functions.bash:1", "functions.bash:1", "functions.bash:0", "functions.bash:0"]),
    ],
)  # fmt: skip
def test_a_known_conversation_is_put_in_order(items: list[Item], ids: list[str]) -> None:
    assert [item.id for item in repaired(items) if not isinstance(item, Turn)] == ids
