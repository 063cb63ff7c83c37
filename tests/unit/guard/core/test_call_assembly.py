"""Calls are put together as clients read them, whatever an engine does with indices, ids and turns."""

import json
from collections.abc import Iterable, Sequence
from itertools import pairwise
from random import Random
from typing import Any

import jsonschema
import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import TOOL_PARAMETERS, TOOLS, call, calls, calls_of, chunk, read, through, tools_request

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, Outcome, WholeGuard

NO_ARGUMENTS = {"type": "function", "function": {"name": "now", "parameters": {"type": "object", "properties": {}}}}
OPTIONAL = {"type": "function", "function": {"name": "list", "parameters": {
    "type": "object", "properties": {"path": {"type": "string"}}}}}  # fmt: skip
BODY = tools_request(tools=[*TOOLS, NO_ARGUMENTS, OPTIONAL])
BERN, ROME = '{"city": "Bern", "days": 2}', '{"city": "Rome", "days": 3}'
ARGUMENTS = st.fixed_dictionaries(
    {"city": st.text(min_size=2, max_size=12), "days": st.integers(1, 9)},
    optional={"notes": st.lists(st.text(max_size=5), max_size=2)},
)
CALLS = st.lists(
    st.tuples(st.sampled_from(["get_weather", "run.shell", "plan_trip"]), ARGUMENTS)
    | st.tuples(st.just("now"), st.just({})),
    min_size=1,
    max_size=5,
)


def entry(index: int | None, identity: str | None = None, name: str | None = None, text: str | None = None) -> Any:
    function = {key: value for key, value in (("name", name), ("arguments", text)) if value is not None}
    members = {"index": index, "id": identity, "function": function or None}
    return {key: value for key, value in members.items() if value is not None}


def answered(entries: Iterable[Any], body: Any = BODY, reason: str = "tool_calls", **settings: Any) -> Any:
    """What a client gets of one attempt with an entry a chunk, and the guard."""
    guard = Guard(GuardConfig(**{"reruns": 0, **settings}), body)
    return read(through(guard, [*(chunk(calls(each)) for each in entries), chunk({}, reason)])), guard


def pieces(text: str, rng: Random) -> list[str]:
    places = sorted({0, len(text), *(rng.randint(0, len(text)) for _ in range(rng.randint(0, 4)))})
    return [text[start:end] for start, end in pairwise(places)]


def shuffled(streams: Sequence[Sequence[Any]], rng: Random) -> list[Any]:
    """The streams' entries in turns; each stream begins after the one before it has begun."""
    left = [list(stream) for stream in streams]
    began, made = 0, []
    while any(left):
        may = [number for number, stream in enumerate(left) if stream and number <= began]
        number = rng.choice(may)
        began = max(began, number + 1)
        made.append(left[number].pop(0))
    return made


def grouped(entries: Sequence[Any], rng: Random) -> list[Any]:
    """The entries as deltas, several in one now and then."""
    places = sorted({0, len(entries), *(rng.randint(0, len(entries)) for _ in range(len(entries)))})
    return [chunk(calls(*entries[start:end])) for start, end in pairwise(places)]


@given(CALLS, st.randoms(use_true_random=False), st.integers(0, 3))
def test_calls_in_turns_and_in_one_chunk_are_the_calls_that_clients_read(
    meant: list[tuple[str, Any]], rng: Random, first: int
) -> None:
    streams = []
    for number, (name, arguments) in enumerate(meant):
        opening = entry(first + number, f"id{number}", name, "")
        text = json.dumps(arguments, ensure_ascii=rng.random() < 0.5)
        streams.append([opening, *(entry(first + number, text=piece) for piece in pieces(text, rng))])
    guard = Guard(GuardConfig(), BODY)
    sent = through(guard, [*grouped(shuffled(streams, rng), rng), chunk({}, "tool_calls")])
    assert calls_of(read(sent)) == meant
    assert guard.outcome is Outcome.CLEAN


@given(CALLS, st.randoms(use_true_random=False), st.data())
def test_nothing_but_valid_calls_leaves_before_an_error(
    meant: list[tuple[str, Any]], rng: Random, data: st.DataObject
) -> None:
    bad = data.draw(st.integers(0, len(meant) - 1))
    damage = data.draw(
        st.sampled_from(["", "{}", '{"city": "Be', "[1]", '{"city": "Bern", "days": 0}', BERN + "}", "no"])
    )
    strict = data.draw(st.booleans())
    streams = []
    for number, (name, arguments) in enumerate(meant):
        broken = number == bad
        text = damage if broken else json.dumps(arguments)
        opening = entry(number, f"id{number}", "get_weather" if broken else name, "")
        streams.append([opening, *(entry(number, text=piece) for piece in pieces(text, rng))])
    if data.draw(st.booleans()):
        streams.append([entry(len(meant), "last", "rm", BERN)])
    guard = Guard(GuardConfig(mode="strict" if strict else "heal", reruns=0), BODY)
    sent = through(guard, [*grouped(shuffled(streams, rng), rng), chunk({}, "tool_calls")])
    message = read(sent)
    if message["error"] is not None:
        for name, arguments in calls_of(message):
            if name != "now":
                jsonschema.Draft202012Validator(TOOL_PARAMETERS).validate(arguments)


WEATHER_TRIP = [("get_weather", json.loads(BERN)), ("plan_trip", json.loads(ROME))]
TWICE = [("get_weather", json.loads(BERN)), ("get_weather", json.loads(ROME))]
SHAPES: dict[str, tuple[list[Any], list[Any]]] = {
    "one index for all, whole calls": (
        [entry(0, "a", "get_weather", BERN), entry(0, "b", "plan_trip", ROME)], WEATHER_TRIP),
    "one index for all, in pieces": (
        [entry(0, "a", "get_weather", ""), entry(0, None, None, BERN[:7]), entry(0, None, None, BERN[7:]),
         entry(0, "b", "plan_trip", ""), entry(0, None, None, ROME)], WEATHER_TRIP),
    "one index for all, the id in every delta": (
        [entry(0, "0", "get_weather", ""), entry(0, "0", None, BERN), entry(0, "1", "plan_trip", ""),
         entry(0, "1", None, ROME)], WEATHER_TRIP),
    "one index for all, in turns by id": (
        [entry(0, "a", "get_weather", ""), entry(0, "b", "plan_trip", ""), entry(0, "a", None, BERN[:7]),
         entry(0, "b", None, ROME), entry(0, "a", None, BERN[7:])], WEATHER_TRIP),
    "one index for all, the same tool": (
        [entry(0, "a", "get_weather", BERN), entry(0, "b", "get_weather", ROME)], TWICE),
    "one index for all, no ids": (
        [entry(0, None, "get_weather", BERN), entry(0, None, "plan_trip", ROME)], WEATHER_TRIP),
    "one index for all, no ids, the same tool": (
        [entry(0, None, "get_weather", BERN), entry(0, None, "get_weather", ROME)], TWICE),
    "one index and one id for all": (
        [entry(0, "x", "get_weather", BERN), entry(0, "x", "plan_trip", ROME)], WEATHER_TRIP),
    "no index": (
        [entry(None, "a", "get_weather", BERN[:9]), entry(None, None, None, BERN[9:]),
         entry(None, "b", "plan_trip", ROME)], WEATHER_TRIP),
    "no index, in turns by id": (
        [entry(None, "a", "get_weather", ""), entry(None, "b", "plan_trip", ""), entry(None, "a", None, BERN),
         entry(None, "b", None, ROME)], WEATHER_TRIP),
    "no index and no ids": (
        [entry(None, None, "get_weather", BERN), entry(None, None, "plan_trip", ROME)], WEATHER_TRIP),
    "the tool's number as index": ([entry(7, "a", "get_weather", BERN), entry(7, "b", "get_weather", ROME)], TWICE),
    "index 1 before 0": (
        [entry(1, "a", "get_weather", ""), entry(0, "b", "plan_trip", ROME), entry(1, None, None, BERN)], WEATHER_TRIP),
    "a tail behind the next call's opening": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(1, "b", "plan_trip", ""), entry(0, None, None, BERN[9:]),
         entry(1, None, None, ROME)], WEATHER_TRIP),
    "id and name in every delta": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, "a", "get_weather", BERN[9:]),
         entry(0, "a", "get_weather", "")], WEATHER_TRIP[:1]),
    "the name in every delta": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, None, "get_weather", BERN[9:])], WEATHER_TRIP[:1]),
    "the name once more before any argument": (
        [entry(0, "a", "get_weather", ""), entry(0, None, "get_weather", ""), entry(0, None, None, BERN)],
        WEATHER_TRIP[:1]),
    "the name once more without an id": (
        [entry(0, None, "get_weather", ""), entry(0, None, "get_weather", BERN)], WEATHER_TRIP[:1]),
    "the id behind a name that comes twice": (
        [entry(0, None, "get_weather", ""), entry(0, "a", "get_weather", BERN)], WEATHER_TRIP[:1]),
    "a new id in every delta": (
        [entry(0, "a", "get_weather", ""), entry(0, "b", None, BERN[:9]), entry(0, "c", None, BERN[9:]),
         entry(0, "d", None, "")], WEATHER_TRIP[:1]),
    "a new id and the name in every delta": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, "b", "get_weather", BERN[9:])], WEATHER_TRIP[:1]),
    "a new id and the name in every delta, the first one empty": (
        [entry(0, "a", "get_weather", ""), entry(0, "b", "get_weather", BERN[:9]),
         entry(0, "c", "get_weather", BERN[9:])], WEATHER_TRIP[:1]),
    "one index for all, the same tool, first without arguments": (
        [entry(0, "a", "now", ""), entry(0, "b", "now", "")], [("now", {}), ("now", {})]),
    "the whole call once more at its end": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, "a", None, BERN[9:]), entry(0, "a", "get_weather", BERN)],
        WEATHER_TRIP[:1]),
    "the whole call once more, encoded anew": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, "a", None, BERN[9:]),
         entry(0, "a", "get_weather", BERN.replace(" ", ""))],
        WEATHER_TRIP[:1]),
    "the whole call once more, its number as another library writes it": (
        [entry(0, "a", "get_weather", BERN), entry(0, "a", "get_weather", BERN.replace("2", "2.0"))], WEATHER_TRIP[:1]),
    "the whole call once more under another index": (
        [entry(0, "a", "get_weather", BERN[:9]), entry(0, "a", None, BERN[9:]), entry(1, "a", "get_weather", BERN)],
        WEATHER_TRIP[:1]),
    "the call once more under other indices, in pieces": (
        [entry(0, "a", "get_weather", ""), entry(0, "a", None, BERN), entry(1, "a", "get_weather", ""),
         entry(1, None, None, BERN[:9]), entry(1, None, None, BERN[9:]), entry(2, "a", "get_weather", BERN),
         entry(3, "b", "plan_trip", ROME)],
        WEATHER_TRIP),
    "one id for all, each with an index": (
        [entry(0, "a", "get_weather", BERN), entry(1, "a", "get_weather", ROME)], TWICE),
    "the same twice with ids of their own": (
        [entry(0, "a", "get_weather", BERN), entry(1, "b", "get_weather", BERN)], WEATHER_TRIP[:1] * 2),
    "a new index in every delta": (
        [entry(0, "a", "get_weather", ""), entry(1, "a", None, BERN[:9]), entry(2, "a", None, BERN[9:])],
        WEATHER_TRIP[:1]),
    "arguments as an object": ([entry(0, "a", "get_weather", json.loads(BERN))], WEATHER_TRIP[:1]),
    "ids that are numbers": (
        [{**entry(0, None, "get_weather", BERN), "id": 0}, {**entry(0, None, "plan_trip", ROME), "id": 1}],
        WEATHER_TRIP),
}  # fmt: skip


@pytest.mark.parametrize("shape", SHAPES)
def test_a_known_way_to_number_calls_is_read(shape: str) -> None:
    entries, meant = SHAPES[shape]
    message, guard = answered(entries)
    assert calls_of(message) == meant
    assert guard.outcome is Outcome.CLEAN
    assert len({each["id"] for each in message["calls"]}) == len(meant)
    in_one_chunk = Guard(GuardConfig(reruns=0), BODY)
    assert calls_of(read(through(in_one_chunk, [chunk(calls(*entries)), chunk({}, "tool_calls")]))) == meant
    live = Guard(GuardConfig(reruns=0), BODY, live=True)
    assert calls_of(read(through(live, [*(chunk(calls(each)) for each in entries), chunk({}, "tool_calls")]))) == meant


def test_two_parts_of_a_name_that_are_alike_make_one_name() -> None:
    twin = {"type": "function", "function": {"name": "pingping", "parameters": {"type": "object", "properties": {}}}}
    message, guard = answered([entry(0, "a", "ping", ""), entry(0, None, "ping", "{}")], tools_request(tools=[twin]))
    assert calls_of(message) == [("pingping", {})]
    assert guard.outcome is Outcome.CLEAN


def test_a_call_that_says_true_for_1_does_not_say_the_same_once_more() -> None:
    one, true = BERN.replace("2", "1"), BERN.replace("2", "true")
    _, guard = answered([entry(0, "a", "get_weather", one), entry(0, "a", "get_weather", true)])
    assert guard.verdicts[0].outcome is not Outcome.CLEAN


def test_a_call_without_arguments_waits_since_it_may_still_get_some() -> None:
    guard = Guard(GuardConfig(), BODY)
    assert guard.feed(chunk(calls(call(0, "list", "")))) == []
    assert guard.feed(chunk(calls(call(1, "get_weather", BERN)))) == []
    path = {"index": 0, "function": {"arguments": '{"path": "/a"}'}}
    first = guard.feed(chunk(calls(path)))
    assert calls_of(read(first)) == [("list", {"path": "/a"})], "it is complete, and another call has begun"
    rest = guard.feed(chunk({}, "tool_calls"))
    assert calls_of(read([*first, *rest])) == [("list", {"path": "/a"}), WEATHER_TRIP[0]]


def test_more_text_behind_a_call_that_went_out_is_damage() -> None:
    message, guard = answered([call(0, "get_weather", BERN), call(1, "plan_trip", ROME), entry(0, text="x")])
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON
    assert calls_of(message) == WEATHER_TRIP[:1]
    assert message["error"] is not None


NOTHING = ["", "null", "None", "undefined", "[]", '""', '"{}"', '"null"', "''", " ", "\n", " null\n", "NULL", "{ }"]


@pytest.mark.parametrize("spelling", NOTHING)
@pytest.mark.parametrize("tool", ["now", "list"])
def test_any_spelling_of_no_arguments_is_an_empty_object(spelling: str, tool: str) -> None:
    for cuts in ([spelling], list(spelling)):
        message, guard = answered([entry(0, "a", tool, ""), *(entry(0, text=piece) for piece in cuts)])
        assert calls_of(message) == [(tool, {})]
        assert guard.outcome is Outcome.CLEAN
    whole = {"id": "x", "created": 1, "model": "m", "choices": [{"index": 0, "finish_reason": "tool_calls", "message": {
        "role": "assistant", "content": None, "tool_calls": [call(0, tool, spelling)]}}]}  # fmt: skip
    checked = WholeGuard(GuardConfig(reruns=0), BODY).check(whole)
    assert checked is not None
    assert json.loads(checked["choices"][0]["message"]["tool_calls"][0]["function"]["arguments"]) == {}


@pytest.mark.parametrize("spelling", ["null", "None", "[]", '""', " "])
def test_no_arguments_for_a_tool_that_needs_some_are_damage(spelling: str) -> None:
    message, _ = answered([call(0, "get_weather", spelling)])
    assert message["error"] is not None
    assert message["calls"] == []


@pytest.mark.parametrize("text", ["nullx", "[1]", '"a"', "0", "false", "nope", "undefinedundefined", "{}}"])
def test_other_text_is_not_taken_for_no_arguments(text: str) -> None:
    message, guard = answered([call(0, "now", text)])
    assert message["error"] is not None
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON


@pytest.mark.parametrize("began", ["", "nul", "null", '{"path"'])
def test_a_last_call_that_a_limit_cut_is_left_out(began: str) -> None:
    message, guard = answered([call(0, "now", ""), call(1, "list", began)], reason="length")
    assert [name for name, _ in calls_of(message)] == (["now", "list"] if began == "null" else ["now"])
    assert message["finish"] == ["length"]
    assert guard.outcome in (Outcome.TRUNCATED, Outcome.CLEAN)


SPELT = {
    "functions.get_weather:0": "get_weather", "functions.get_weather": "get_weather", "get_weather:3": "get_weather",
    "functions_get_weather_0": "get_weather", "functionsplan_trip2": "plan_trip", "functions.run.shell:1": "run.shell",
    "functions_run_shell_1": "run.shell", " get_weather ": "get_weather",
    "get_weather</arg_value>": "get_weather", "plan_trip</tool_call>\n": "plan_trip",
    "get_weather<|channel|>commentary": "get_weather", "functions.plan_trip<|call|><|end|>": "plan_trip",
}  # fmt: skip


@pytest.mark.parametrize("spelling", SPELT)
def test_an_engines_name_that_is_a_whole_id_is_read_as_the_tool_and_counted(spelling: str) -> None:
    message, guard = answered([call(0, spelling, BERN)])
    assert calls_of(message) == [(SPELT[spelling], json.loads(BERN))]
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize(
    "name", ["get_weather_3", "weather", "functions.get:0", "get_weatherx", "functions.", "functions"]
)
def test_a_name_that_may_be_another_tool_is_none(name: str) -> None:
    message, guard = answered([call(0, name, BERN)])
    assert message["error"] is not None
    assert guard.verdicts[0].outcome is Outcome.UNKNOWN_TOOL


@pytest.mark.parametrize(
    "name",
    [
        "get_weather<arg_key>",
        "get_weather<arg_key>city</arg_key><arg_value>Oslo</arg_value>",
        "get_weather</arg_value>x",
        "<|channel|>commentary",
        "assistant<|channel|>analysis",
    ],
)
def test_a_name_with_markup_that_is_not_just_its_end_is_a_leak(name: str) -> None:
    message, guard = answered([call(0, name, BERN)])
    assert message["error"] is not None
    assert guard.verdicts[0].outcome is Outcome.MARKER_LEAK


ONE = {**BODY, "parallel_tool_calls": False}


def test_a_second_call_that_the_request_rules_out_is_rerun() -> None:
    more = {"index": 1, "function": {"arguments": "x{"}}
    both = [
        *(chunk(calls(each)) for each in (call(0, "get_weather", BERN), call(1, "rm", "{"), more)),
        chunk({}, "stop"),
    ]
    guard = Guard(GuardConfig(), ONE)
    sent = through(guard, both, [chunk(calls(call(0, "plan_trip", ROME))), chunk({}, "tool_calls")])
    assert calls_of(read(sent)) == WEATHER_TRIP[1:], "nothing of the first attempt went out"
    assert sent[-1]["specgate"]["reasons"] == ["parallel_calls"]


def test_of_calls_that_persist_against_the_request_the_first_goes_out_and_the_client_is_told() -> None:
    both = [chunk(calls(call(0, "get_weather", BERN), call(1, "plan_trip", ROME))), chunk({}, "tool_calls")]
    for settings, attempts in (
        (GuardConfig(), (both, both)),
        (GuardConfig(), (both,)),
        (GuardConfig(reruns=0), (both,)),
    ):
        guard = Guard(settings, ONE)
        sent = through(guard, *attempts)
        assert calls_of(read(sent)) == WEATHER_TRIP[:1]
        assert sent[-1]["specgate"]["unclean"] == ["parallel_calls"]
        assert guard.verdicts[0].outcome is Outcome.PARALLEL_CALLS
    message, _ = answered([call(0, "get_weather", BERN), call(1, "plan_trip", ROME)], ONE, mode="strict")
    assert message["error"] is not None


def test_one_call_is_what_such_a_request_wants() -> None:
    message, guard = answered([call(0, "get_weather", BERN)], ONE)
    assert calls_of(message) == WEATHER_TRIP[:1]
    assert guard.outcome is Outcome.CLEAN


@pytest.mark.parametrize("again", [[entry(1, "a", "get_weather", BERN)],
                                   [entry(1, "a", "get_weather", ""), entry(1, None, None, BERN)]])  # fmt: skip
def test_the_one_call_may_be_said_again_under_another_index_and_another_call_may_not(again: list[Any]) -> None:
    first = entry(0, "a", "get_weather", BERN)
    message, guard = answered([first, *again], ONE)
    assert calls_of(message) == WEATHER_TRIP[:1]
    assert guard.outcome is Outcome.CLEAN
    other = [{**each, "function": {**each["function"], "name": "plan_trip"}} for each in again]
    message, guard = answered([first, *other], ONE)
    assert calls_of(message) == WEATHER_TRIP[:1]
    assert guard.outcome is Outcome.PARALLEL_CALLS
