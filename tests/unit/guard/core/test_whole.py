"""Whole answers: judged as streams are, replaced entirely by a rerun, untouched when they are clean."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.guard_harness import answer_of, call, chunk, json_request, tools_request

from lab.sim import SimSettings
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard, check_answer
from serve.guard.core.chunk import MAX_CHOICES
from serve.guard.core.whole import chunks_of

CLEAN = SimSettings(num_speculative_tokens=2, thinking=True)


@pytest.mark.parametrize("body", [tools_request(1), tools_request(2, tool_choice="none"), json_request(3)])
def test_a_clean_answer_keeps_all_its_fields(body: dict[str, object]) -> None:
    answer = answer_of(body, CLEAN)
    guard = WholeGuard(GuardConfig(), body)
    assert guard.check(answer) == answer
    assert guard.guard.outcome is Outcome.CLEAN


@pytest.mark.parametrize("fault", ["truncated_string", "wrong_name", "merged_calls", "marker_leak", "swallowed_call"])
def test_a_broken_answer_is_replaced_by_the_next_pools_and_usage_is_the_sum(fault: str) -> None:
    body = tools_request(3, tool_choice="required")
    bad, good = answer_of(body, SimSettings(faults={fault: 1.0})), answer_of(body, CLEAN)
    guard = WholeGuard(GuardConfig(), body)
    assert guard.check(bad) is None
    assert guard.guard.state is GuardState.RERUN
    guard.guard.restart("standard")
    final = guard.check(good)
    assert final is not None
    assert final["choices"] == good["choices"]
    assert final["usage"]["total_tokens"] == bad["usage"]["total_tokens"] + good["usage"]["total_tokens"]
    assert final["specgate"]["rerun"] == "standard"


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_its_engine_gave_up_is_rerun_whole_or_streamed(reason: str) -> None:
    body = tools_request(3)
    half = {**answer_of(body, CLEAN), "choices": [{"index": 0, "message": {"content": "On"}, "finish_reason": reason}]}
    whole = WholeGuard(GuardConfig(), body)
    streamed = Guard(GuardConfig(), body)
    assert whole.check(half) is None
    sent = [*streamed.feed(chunk({"content": "On"})), *streamed.feed(chunk({}, reason)), *streamed.finish()]
    for guard in (whole.guard, streamed):
        assert (guard.state, guard.verdicts[0].outcome) == (GuardState.RERUN, Outcome.FAILED)
    assert [choice["finish_reason"] for each in sent for choice in each["choices"]] == [None]


def test_of_a_finish_reason_without_end_a_defect_says_the_beginning() -> None:
    guard = WholeGuard(GuardConfig(), body := tools_request(3))
    message = {"content": "On"}
    guard.check({**answer_of(body, CLEAN), "choices": [{"index": 0, "message": message, "finish_reason": "x" * 10**5}]})
    assert len(str(guard.guard.verdicts[0].defects)) < 1000


def test_when_no_pool_is_right_the_client_gets_an_error_or_the_marked_original() -> None:
    body = tools_request(3)
    bad = answer_of(body, SimSettings(faults={"truncated_string": 1.0}))
    guard = WholeGuard(GuardConfig(reruns=0), body)
    assert guard.check(bad) is None
    assert guard.give_up()["error"]["code"] == "integrity_violation"
    guard = WholeGuard(GuardConfig(reruns=0, on_failure="unclean"), body)
    final = guard.check(bad)
    assert final is not None
    assert final["choices"] == bad["choices"]
    assert final["specgate"] == {"unclean": ["truncated"]}


def answered(*cities: str | None, usage: int = 10) -> dict[str, Any]:
    """Returns an answer with a choice for each city; None stands for a call that is cut."""
    choices = []
    for index, city in enumerate(cities):
        arguments = '{"city": "Os' if city is None else json.dumps({"city": city, "days": 2})
        message = {"role": "assistant", "content": None, "tool_calls": [call(0, "get_weather", arguments)]}
        choices.append({"index": index, "message": message, "finish_reason": "tool_calls"})
    return {"id": "c", "choices": choices, "usage": {"total_tokens": usage}}


def cities_of(answer: dict[str, Any] | None) -> list[str]:
    assert answer is not None
    calls = [choice["message"]["tool_calls"][0]["function"] for choice in answer["choices"]]
    return [json.loads(each["arguments"])["city"] for each in calls]


@given(st.lists(st.lists(st.booleans(), min_size=3, max_size=3), min_size=1, max_size=3))
def test_a_choice_that_was_sound_once_is_kept_whatever_a_rerun_makes_of_it(attempts: list[list[bool]]) -> None:
    guard = WholeGuard(GuardConfig(reruns=len(attempts) - 1), tools_request(n=3))
    kept: dict[int, str] = {}
    for number, sound in enumerate(attempts):
        answer = guard.check(answered(*(f"City {number}" if each else None for each in sound)))
        kept = {index: f"City {number}" for index, each in enumerate(sound) if each} | kept
        if len(kept) == len(sound):
            assert cities_of(answer) == [kept[index] for index in range(3)]
            assert answer["usage"]["total_tokens"] == 10 * (number + 1)
            return
        assert answer is None
        if guard.guard.state is GuardState.RERUN:
            guard.guard.restart("standard")
    assert guard.give_up()["error"]["code"] == "integrity_violation"


def test_a_marked_answer_has_its_sound_choices_whole() -> None:
    guard = WholeGuard(GuardConfig(), tools_request(n=2))
    assert guard.check(answered("Oslo", "O")) is None
    assert cities_of(guard.give_up()) == ["Oslo", "O"]


def test_observing_returns_the_answer_itself() -> None:
    body = tools_request(3)
    bad = answer_of(body, SimSettings(faults={"truncated_string": 1.0}))
    guard = WholeGuard(GuardConfig(mode="observe"), body)
    assert guard.check(bad) is bad
    assert guard.guard.verdicts[0].outcome is Outcome.TRUNCATED


def test_an_answer_can_be_judged_alone() -> None:
    body = tools_request(3)
    verdict = check_answer(GuardConfig(), body, answer_of(body, SimSettings(faults={"wrong_name": 1.0})))
    assert verdict.outcome is Outcome.UNKNOWN_TOOL
    assert check_answer(GuardConfig(), body, answer_of(body, CLEAN)).good
    assert check_answer(GuardConfig(), body, {"choices": []}).outcome is Outcome.TRUNCATED


def long_answer(*messages: dict[str, Any], reason: str = "stop") -> dict[str, Any]:
    choices = [
        {"index": index, "message": {"role": "assistant", **message}, "finish_reason": reason}
        for index, message in enumerate(messages)
    ]
    usage = {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2}
    return {"id": "c", "object": "chat.completion", "created": 1, "model": "m", "choices": choices, "usage": usage}


def call_of(arguments: str) -> dict[str, Any]:
    return {"id": "call_1", "type": "function", "function": {"name": "get_weather", "arguments": arguments}}


def test_calls_are_told_apart_by_their_place_whatever_index_they_name() -> None:
    message = {"content": None, "tool_calls": [{**call_of(text), "id": text, "index": 0} for text in (BERN, OSLO)]}
    guard = WholeGuard(GuardConfig(), tools_request(1))
    checked = guard.check(long_answer(message, reason="tool_calls"))
    assert guard.guard.outcome is Outcome.CLEAN
    assert checked is not None
    assert [call["function"]["arguments"] for call in checked["choices"][0]["message"]["tool_calls"]] == [BERN, OSLO]


def pauses(guard: WholeGuard, answer: dict[str, Any]) -> tuple[int, dict[str, Any] | None]:
    steps = guard.judge(answer)
    count = 0
    while True:
        try:
            next(steps)
        except StopIteration as end:
            return count, end.value
        count += 1


BERN, OSLO = '{"city": "Bern", "days": 1}', '{"city": "Oslo", "days": 2}'
LONG = '{"city": "' + "Oslo " * 60_000 + '", "days": 2}'


def test_a_long_answer_is_judged_in_pieces_and_comes_back_the_same() -> None:
    body = tools_request(1)
    message = {"content": "It rains. " * 30_000, "tool_calls": [call_of(LONG), {**call_of(LONG), "id": "call_2"}]}
    for answer in (long_answer(message, reason="tool_calls"), long_answer({"content": "so " * 50_000}, message)):
        guard = WholeGuard(GuardConfig(), body)
        count, checked = pauses(guard, answer)
        assert count > 5
        assert checked is not None
        assert {**checked, "choices": None} == {**answer, "choices": None}
        for ours, theirs in zip(checked["choices"], answer["choices"], strict=True):
            assert ours["message"] == theirs["message"]
        assert guard.guard.outcome is Outcome.CLEAN


def test_the_pieces_of_an_answer_hold_all_of_it_once() -> None:
    answer = long_answer({"content": "a" * 200_000, "reasoning": "b" * 70_000, "tool_calls": [call_of("c" * 150_000)]})
    chunks = list(chunks_of(answer))
    deltas = [choice["delta"] for chunk in chunks for choice in chunk["choices"]]
    entries = [entry for delta in deltas for entry in delta.get("tool_calls", ())]
    assert "".join(delta.get("content", "") for delta in deltas) == "a" * 200_000
    assert "".join(delta.get("reasoning", "") for delta in deltas) == "b" * 70_000
    assert "".join(entry["function"]["arguments"] for entry in entries) == "c" * 150_000
    assert [entry.get("id") for entry in entries] == ["call_1", None, None]
    assert sum("usage" in chunk for chunk in chunks) == 1
    reasons = [choice["finish_reason"] for chunk in chunks for choice in chunk["choices"]]
    assert [reason for reason in reasons if reason] == ["stop"]


def test_nothing_more_is_read_of_an_answer_that_is_broken() -> None:
    broken = {"content": None, "tool_calls": [call_of("[" * 100_000), *[call_of(LONG)] * 20]}
    guard = WholeGuard(GuardConfig(), tools_request(1))
    count, checked = pauses(guard, long_answer(broken, reason="tool_calls"))
    assert checked is None
    assert guard.guard.state is GuardState.RERUN
    assert count <= 3


def test_calls_without_end_and_too_many_choices_are_malformed() -> None:
    body = tools_request(1)
    many = long_answer({"content": None, "tool_calls": [call_of('{"city": "Oslo", "days": 2}')] * 5_000})
    choices = long_answer(*[{"content": "hello " * 1_000}] * (MAX_CHOICES + 1))
    for answer in (many, choices):
        guard = WholeGuard(GuardConfig(), body)
        count, checked = pauses(guard, answer)
        assert checked is None
        assert count <= 600


@pytest.mark.parametrize("arguments", ["[" + "1," * 400_000 + "1]", "[" + "{}," * 100_000 + "1]"])
def test_calls_with_more_values_than_any_tool_takes_are_broken(arguments: str) -> None:
    answer = long_answer({"content": None, "tool_calls": [call_of(f'{{"a": {arguments}}}')]}, reason="tool_calls")
    verdict = check_answer(GuardConfig(), tools_request(1), answer)
    assert verdict.outcome is Outcome.INVALID_JSON
