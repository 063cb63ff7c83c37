"""The guard over streams: what passes at once, what is held, what is rerun, what a client finally has."""

import json
from typing import Any

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st
from support.guard_harness import (
    CLEAN,
    ENVELOPE,
    TOOLS,
    broken,
    call,
    calls,
    calls_of,
    chunk,
    chunks_of,
    healed,
    json_request,
    read,
    through,
    tools_request,
)

from lab.sim import SimSettings
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, Severity
from serve.guard.core.client_view import DELTA_CHARS

GOOD = '{"city": "Bern", "days": 2}'


def usage(tokens: int) -> dict[str, Any]:
    return {**ENVELOPE, "choices": [], "usage": {"prompt_tokens": 9, "completion_tokens": tokens}}


def test_text_passes_at_once_and_untouched() -> None:
    guard = Guard(GuardConfig(), tools_request())
    for each in (chunk({"role": "assistant", "content": ""}), chunk({"reasoning": "hm"}), chunk({"content": "a < b"})):
        assert guard.feed(each) == [each]
        assert guard.feed(each)[0] is each


def test_an_empty_finish_reason_ends_nothing() -> None:
    entries = ({"role": "assistant"}, {"content": "So: "}, calls(call(0, "get_weather", GOOD)))
    sent = through(
        Guard(GuardConfig(), tools_request()), [*(chunk(entry, "") for entry in entries), chunk({}, "tool_calls")]
    )
    message = read(sent)
    assert (message["content"], calls_of(message)) == ("So: ", [("get_weather", json.loads(GOOD))])
    assert all(each["choices"][0]["finish_reason"] != "" for each in sent)


def test_a_name_that_comes_with_its_id_in_every_delta_is_one_name() -> None:
    entries = [call(0, "get_weather", part) for part in (GOOD[:5], GOOD[5:])]
    sent = through(Guard(GuardConfig(), tools_request()), [*map(chunk, map(calls, entries)), chunk({}, "tool_calls")])
    assert calls_of(read(sent)) == [("get_weather", json.loads(GOOD))]


def test_a_call_is_held_until_it_is_complete_and_comes_in_the_shape_that_clients_know() -> None:
    long = json.dumps({"city": "Bern", "days": 2, "notes": ["x" * 2 * DELTA_CHARS]})
    guard = Guard(GuardConfig(), tools_request())
    assert guard.feed(chunk(calls(call(0, "get_weather", "")))) == []
    assert guard.feed(chunk(calls({"index": 0, "function": {"arguments": long}}))) == []
    sent = guard.feed(chunk(calls(call(1, "plan_trip", ""))))
    entries = [each["choices"][0]["delta"]["tool_calls"][0] for each in sent]
    assert entries[0] == {
        "index": 0, "id": "id0", "type": "function", "function": {"name": "get_weather", "arguments": ""},
    }  # fmt: skip
    assert [entry["function"]["arguments"] for entry in entries[1:]] == [
        long[:DELTA_CHARS], long[DELTA_CHARS : 2 * DELTA_CHARS], long[2 * DELTA_CHARS :],
    ]  # fmt: skip


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes"])
@pytest.mark.parametrize("seed", range(10))
def test_a_clean_answer_stays_what_it_was(grammar: str, seed: int) -> None:
    pool = SimSettings(grammar=grammar, num_speculative_tokens=3, thinking=True)  # type: ignore[arg-type]
    body = tools_request(seed, stream_options={"include_usage": True})
    sent, guard = healed(body, pool)
    assert read(sent) == read(chunks_of(body, pool, "chatcmpl-0"))
    assert guard.outcome is Outcome.CLEAN
    assert guard.state is GuardState.DONE
    assert sent[-1]["usage"]["total_tokens"] > 0
    assert "metrics" in sent[-1]


FOUND = {
    "truncated_string": Outcome.TRUNCATED,
    "truncated_character": Outcome.TRUNCATED,
    "broken_character": Outcome.TRUNCATED,
    "double_brace": Outcome.INVALID_JSON,
    "marker_leak": Outcome.MARKER_LEAK,
    "reserved_id": Outcome.MARKER_LEAK,
    "tool_code_cascade": Outcome.MARKER_LEAK,
    "merged_calls": Outcome.INVALID_JSON,
    "swallowed_call": Outcome.EMPTY_WHEN_REQUIRED,
    "wrong_name": Outcome.UNKNOWN_TOOL,
    "doubled_key": Outcome.MARKER_LEAK,
    "empty_arguments": Outcome.SCHEMA_MISMATCH,
}


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes"])
@pytest.mark.parametrize(("fault", "outcome"), FOUND.items())
def test_each_fault_is_found_named_and_healed_by_the_next_pool(fault: str, outcome: Outcome, grammar: str) -> None:
    body = tools_request(3, tool_choice="required")
    clean = SimSettings(grammar=grammar)  # type: ignore[arg-type]
    sent, guard = healed(body, broken(fault, grammar=grammar), clean)
    message = read(sent)
    assert guard.verdicts[0].outcome is outcome
    assert guard.outcome is Outcome.RERUN
    assert calls_of(message) == calls_of(read(chunks_of(body, clean)))
    assert message["finish"] == ["tool_calls"]
    assert sent[-1]["specgate"].items() >= {"rerun": "standard", "reasons": [outcome]}.items()


def test_what_can_not_be_healed_ends_in_an_error_never_in_silence() -> None:
    sent, guard = healed(tools_request(), broken("wrong_name"), broken("wrong_name"))
    message = read(sent)
    assert message["error"]["code"] == "integrity_violation"
    assert message["calls"] == [] or all(name != "" for name, _ in calls_of(message))
    assert guard.state is GuardState.FAILED
    assert guard.outcome is Outcome.FAILED


def test_by_config_the_original_is_sent_marked_as_unclean() -> None:
    body = tools_request(3)
    sent, guard = healed(
        body, broken("truncated_string"), broken("truncated_string"), settings=GuardConfig(on_failure="unclean")
    )
    message = read(sent)
    assert message["finish"] == ["tool_calls"]
    assert len(message["calls"]) == len(read(chunks_of(body, CLEAN))["calls"])
    assert sent[-1]["specgate"]["unclean"] == ["truncated"]
    assert guard.outcome is Outcome.TRUNCATED


def test_without_another_pool_a_schema_mismatch_is_delivered_marked_and_a_broken_call_is_not() -> None:
    sent, _ = healed(tools_request(), broken("empty_arguments"))
    assert read(sent)["finish"] == ["tool_calls"]
    assert sent[-1]["specgate"]["unclean"] == ["schema_mismatch"]
    sent, _ = healed(tools_request(), broken("double_brace"))
    assert read(sent)["error"]["code"] == "integrity_violation"


def test_a_mismatch_that_both_pools_show_is_the_models_own_and_is_delivered() -> None:
    sent, guard = healed(tools_request(), broken("empty_arguments"), broken("empty_arguments"))
    assert ("{}" in [each["arguments"] for each in read(sent)["calls"]]) is True
    assert guard.outcome is Outcome.SCHEMA_MISMATCH
    sent, _ = healed(
        tools_request(), broken("empty_arguments"), broken("empty_arguments"), settings=GuardConfig(mode="strict")
    )
    assert read(sent)["error"]["code"] == "integrity_violation"


def test_a_mismatch_with_a_strict_tool_never_leaves_and_a_warning_never_reruns() -> None:
    strict = [{**tool, "function": {**tool["function"], "strict": True}} for tool in TOOLS]
    sent, _ = healed({**tools_request(), "tools": strict}, broken("empty_arguments"), broken("empty_arguments"))
    assert read(sent)["error"]["code"] == "integrity_violation"
    sent, guard = healed(tools_request(), broken("empty_arguments"), settings=GuardConfig(schema="warn"))
    assert guard.outcome is Outcome.SCHEMA_MISMATCH
    assert guard.verdicts[0].defects[0].severity is Severity.NOTE
    assert "specgate" not in sent[-1]


def test_observing_changes_nothing_and_judges_all_the_same() -> None:
    body = tools_request()
    chunks = chunks_of(body, broken("merged_calls"))
    guard = Guard(GuardConfig(mode="observe"), body)
    sent = through(guard, chunks)
    assert all(one is other for one, other in zip(sent, chunks, strict=True))
    assert guard.verdicts[0].outcome is Outcome.INVALID_JSON


@pytest.mark.parametrize("reason", ["length", "max_tokens", "MAX_TOKENS", "model_length"])
def test_an_answer_cut_by_length_is_no_corruption_and_keeps_its_whole_calls(reason: str) -> None:
    body = tools_request()
    guard = Guard(GuardConfig(), body)
    first, cut = call(0, "get_weather", GOOD), call(1, "plan_trip", '{"city": "Be')
    sent = through(guard, [chunk(calls(first)), chunk(calls(cut)), chunk({}, reason)])
    message = read(sent)
    assert [name for name, _ in calls_of(message)] == ["get_weather"]
    assert message["finish"] == ["length"]
    verdict = guard.verdicts[0]
    assert (verdict.outcome, verdict.counts) == (Outcome.TRUNCATED, False)


@pytest.mark.parametrize("field", ["max_tokens", "max_completion_tokens"])
@pytest.mark.parametrize("tail", ['{"city": "Be', "{}", ""])
def test_a_call_cut_by_the_limit_of_tokens_is_told_as_cut_though_its_engine_says_that_it_is_whole(
    tail: str, field: str
) -> None:
    cut = [chunk(calls(call(0, "get_weather", GOOD))), chunk(calls(call(1, "plan_trip", tail)), "tool_calls")]
    guard = Guard(GuardConfig(), tools_request(**{field: 20}))
    message = read(through(guard, [*cut, usage(20)]))
    assert [name for name, _ in calls_of(message)] == ["get_weather"]
    assert message["finish"] == ["length"]
    assert (guard.state, guard.verdicts[0].counts) == (GuardState.DONE, False)


@pytest.mark.parametrize(("arguments", "outcome"), [(GOOD, Outcome.CLEAN), ('{"city": "Be', Outcome.TRUNCATED)])
@pytest.mark.parametrize("ending", [[], [usage(19)], [{**ENVELOPE, "choices": []}, usage(19)]])
def test_within_the_limit_of_tokens_a_call_is_what_it_is(ending: list[Any], arguments: str, outcome: Outcome) -> None:
    guard = Guard(GuardConfig(), tools_request(max_tokens=20))
    message = read(through(guard, [chunk(calls(call(0, "plan_trip", arguments))), chunk({}, "tool_calls"), *ending]))
    assert (guard.verdicts[0].outcome, guard.verdicts[0].counts) == (outcome, True)
    assert message["finish"] == (["tool_calls"] if outcome is Outcome.CLEAN else [])


def test_a_whole_call_that_reaches_the_limit_of_tokens_is_not_cut() -> None:
    guard = Guard(GuardConfig(), tools_request(max_tokens=20))
    message = read(through(guard, [chunk(calls(call(0, "plan_trip", GOOD)), "tool_calls"), usage(20)]))
    assert (calls_of(message)[0][0], message["finish"]) == ("plan_trip", ["tool_calls"])


@pytest.mark.parametrize(
    ("engines", "clients"), [("max_tokens", "length"), ("SAFETY", "content_filter"), ("eos_token", "stop")]
)
def test_a_client_gets_openais_word_for_the_end_of_an_answer(engines: str, clients: str) -> None:
    guard = Guard(GuardConfig(), tools_request())
    assert read(through(guard, [chunk({"content": "Hm."}, engines)]))["finish"] == [clients]


@pytest.mark.parametrize("whole", [False, True])
@pytest.mark.parametrize("size", range(1, len(GOOD), 5))
def test_a_filter_may_end_an_answer_anywhere(size: int, whole: bool) -> None:
    first = [chunk(calls(call(0, "get_weather", GOOD)))] if whole else []
    guard = Guard(GuardConfig(), tools_request())
    cut = chunk(calls(call(1, "plan_trip", GOOD[:size])), "content_filter")
    message = read(through(guard, [chunk({"content": "So:"}), *first, cut]))
    assert (message["content"], message["finish"], len(message["calls"])) == ("So:", ["content_filter"], whole)
    assert not guard.verdicts[0].counts
    guard = Guard(GuardConfig(), json_request())
    message = read(through(guard, [chunk({"content": GOOD[:size]}), chunk({}, "content_filter")]))
    assert (message["content"], message["finish"], message["error"]) == (GOOD[:size].rstrip(), ["content_filter"], None)


def test_calls_with_odd_indices_late_names_nulls_and_twin_ids_come_out_in_order() -> None:
    guard = Guard(GuardConfig(), tools_request())
    late = {"index": 7, "id": "x", "type": "function", "function": {"name": "", "arguments": ""}}
    named = {"index": 7, "id": None, "type": None, "function": {"name": "get_weather", "arguments": GOOD}}
    twin = call(9, "plan_trip", GOOD, "x")
    sent = through(guard, [chunk(calls(late)), chunk(calls(named, twin)), chunk({}, "tool_calls")])
    message = read(sent)
    assert [each["name"] for each in message["calls"]] == ["get_weather", "plan_trip"]
    assert len({each["id"] for each in message["calls"]}) == 2


def test_empty_arguments_become_an_object_where_the_schema_allows_it() -> None:
    tools = [{"type": "function", "function": {"name": "now"}}]
    guard = Guard(GuardConfig(), {**tools_request(), "tools": tools})
    sent = through(guard, [chunk(calls(call(0, "now", ""))), chunk({}, "tool_calls")])
    assert calls_of(read(sent)) == [("now", {})]


def test_the_finish_reason_fits_what_went_out() -> None:
    guard = Guard(GuardConfig(), tools_request())
    assert read(through(guard, [chunk(calls(call(0, "plan_trip", GOOD))), chunk({}, "stop")]))["finish"] == [
        "tool_calls"
    ]
    forced = tools_request(tool_choice={"type": "function", "function": {"name": "plan_trip"}})
    guard = Guard(GuardConfig(), forced)
    assert read(through(guard, [chunk(calls(call(0, "plan_trip", GOOD))), chunk({}, "stop")]))["finish"] == ["stop"]


def test_another_tool_than_the_forced_one_is_a_violation() -> None:
    forced = tools_request(tool_choice={"type": "function", "function": {"name": "plan_trip"}})
    guard = Guard(GuardConfig(), forced)
    through(guard, [chunk(calls(call(0, "get_weather", GOOD))), chunk({}, "stop")])
    assert guard.verdicts[0].outcome is Outcome.UNKNOWN_TOOL


def test_silence_after_a_tools_result_may_be_meant() -> None:
    body = tools_request()
    silent = [chunk({"role": "assistant", "content": ""}), chunk({}, "stop")]
    guard = Guard(GuardConfig(), {**body, "messages": [*body["messages"], {"role": "tool", "content": "ok"}]})
    through(guard, silent)
    assert guard.outcome is Outcome.CLEAN
    guard = Guard(GuardConfig(), body)
    message = read(through(guard, silent, silent))
    assert guard.verdicts[0].outcome is Outcome.EMPTY_WHEN_REQUIRED
    assert message["finish"] == ["stop"], "where the other pool is silent too, the model means it"


@pytest.mark.parametrize("ending", [[], [{"error": {"message": "dead", "type": "x", "param": None, "code": 500}}]])
def test_a_stream_that_dies_is_rerun_and_counted(ending: list[dict[str, Any]]) -> None:
    body = tools_request(1)
    guard = Guard(GuardConfig(), body)
    sent = through(guard, [*chunks_of(body, CLEAN)[:5], *ending], chunks_of(body, CLEAN))
    assert calls_of(read(sent)) == calls_of(read(chunks_of(body, CLEAN)))
    assert guard.outcome is Outcome.RERUN


@pytest.mark.parametrize("text", ["It says: 21 degrees", "21 degrees"])
def test_what_a_rerun_thinks_before_a_text_does_not_come_within_it(text: str) -> None:
    again = [chunk({"reasoning": "Now I"}), chunk({"reasoning": " know."}), chunk({"content": text}), chunk({}, "stop")]
    sent = through(Guard(GuardConfig(), tools_request()), [chunk({"content": "It says: 21"})], again)
    assert [[*each["choices"][0]["delta"]] for each in sent] == [["content"], ["content"], []]


@pytest.mark.parametrize(
    ("reason", "content"),
    [("stop", "The total is 120\n\nThe total is 12"), ("length", "The total is 120")],
)
def test_an_answer_that_ends_within_what_went_out_contradicts_it_unless_length_has_cut_it(
    reason: str, content: str
) -> None:
    first = [
        chunk({"content": "The total is 120"}),
        chunk(calls(call(0, "get_weather", '{"city": "Os'))),
        chunk({}, "stop"),
    ]
    second = [chunk({"content": "The total"}), chunk({"content": " is 12"}), chunk({}, reason)]
    message = read(through(Guard(GuardConfig(), tools_request()), first, second))
    assert (message["content"], message["finish"]) == (content, [reason])


NAMES = [("reasoning",), ("reasoning_content",), ("reasoning", "reasoning_content")]


@pytest.mark.parametrize("first", NAMES)
@pytest.mark.parametrize("second", NAMES)
def test_thoughts_that_a_rerun_goes_on_with_come_once_and_under_one_name_whatever_its_engine_calls_them(
    first: tuple[str, ...], second: tuple[str, ...]
) -> None:
    def thinks(names: tuple[str, ...], *pieces: str) -> list[dict[str, Any]]:
        return [chunk(dict.fromkeys(names, piece)) for piece in pieces]

    again = [*thinks(second, "I must ", "look, then", " say."), chunk({"content": "Hm."}), chunk({}, "stop")]
    sent = through(Guard(GuardConfig(), tools_request()), thinks(first, "I must ", "look"), again)
    deltas = [each["choices"][0]["delta"] for each in sent]
    assert {name for delta in deltas for name in delta if name != "content"} == {*first}
    seen = "".join(delta.get("reasoning") or delta.get("reasoning_content") or "" for delta in deltas)
    assert seen == "I must look, then say."


ENDS = ["]", "[", "<", "</", "<t", "<|", "[TOOL", "a <b", "`<tool_call>`", '"<think>"', "end.", "{"]
CALL = {"content": None, **calls(call(0, "plan_trip", '{"city": "Oslo", "days": 1}'))}


@given(
    st.sampled_from(["", "See [1", "a <b> "]), st.sampled_from(ENDS), st.booleans(), st.booleans(),
    st.sampled_from([("reasoning", {"content": "Hello."}), ("reasoning", CALL), ("content", CALL)]),
)  # fmt: skip
def test_the_end_of_a_text_goes_out_before_what_follows_it(
    before: str, end: str, split: bool, together: bool, texts: tuple[str, dict[str, Any]]
) -> None:
    name, later = texts
    assume(not (name == "content" and end == "[TOOL"))  # a half marker beside calls is dropped
    pieces = [*(before + end)] if split else [before, end]
    deltas = [{name: piece} for piece in pieces]
    deltas = [*deltas[:-1], {**later, **deltas[-1]}] if together else [*deltas, later]
    guard = Guard(GuardConfig(), tools_request())
    sent = through(guard, [*map(chunk, deltas), chunk({}, "stop")])
    assert guard.outcome is Outcome.CLEAN
    ready = [each["choices"][0]["delta"] for each in sent]
    assert "".join(delta.get(name) or "" for delta in ready) == before + end
    begun = next(number for number, delta in enumerate(ready) if any(delta.get(each) for each in later if each != name))
    assert not any(delta.get(name) for delta in ready[begun + 1 :])


@pytest.mark.parametrize(("ended", "state"), [(False, GuardState.RERUN), (True, GuardState.DONE)])
def test_a_broken_connection_matters_only_while_something_is_missing(ended: bool, state: GuardState) -> None:
    guard = Guard(GuardConfig(), tools_request())
    for each in [chunk({"content": "hi"}), *([chunk({}, "stop")] if ended else [])]:
        guard.feed(each)
    guard.broke("the connection broke")
    assert guard.state is state


def test_a_lost_attempt_is_read_on_for_its_usage_once_it_has_ended_and_not_before() -> None:
    body = tools_request(stream_options={"include_usage": True})
    early, late = Guard(GuardConfig(), body), Guard(GuardConfig(), body)
    early.feed(chunk(calls(call(0, "get_weather", "{{"))))
    assert (early.state, early.awaits_usage) == (GuardState.RERUN, False)
    late.feed(chunk(calls(call(0, "rm", GOOD))))
    late.feed(chunk({}, "tool_calls"))
    assert (late.state, late.awaits_usage) == (GuardState.RERUN, True)
    late.feed({**chunk({}), "choices": [], "usage": {"completion_tokens": 7}})
    assert not late.awaits_usage
    late.restart("standard")
    sent = [*late.feed(chunk({"content": "no"})), *late.feed(chunk({}, "stop")), *late.finish()]
    assert sent[-1]["usage"] == {"completion_tokens": 7}


def test_usage_of_both_attempts_is_added_where_both_were_reported() -> None:
    body = tools_request(3, stream_options={"include_usage": True})
    first = chunks_of(body, broken("swallowed_call"))
    second = chunks_of(body, CLEAN)
    sent = through(Guard(GuardConfig(), body), first, second)
    total = first[-1]["usage"]["completion_tokens"] + second[-1]["usage"]["completion_tokens"]
    assert sent[-1]["usage"]["completion_tokens"] == total
    assert "attempts_without_usage" not in sent[-2]["specgate"]


def test_a_client_that_did_not_ask_for_usage_gets_none() -> None:
    sent, _ = healed(tools_request(), CLEAN)
    assert all(each["choices"] and "usage" not in each for each in sent)


def test_several_choices_are_guarded_each_by_itself() -> None:
    good, bad = calls(call(0, "get_weather", GOOD)), calls(call(0, "rm", GOOD))
    guard = Guard(GuardConfig(), tools_request(n=2))
    first = [chunk(good, index=0), chunk({}, "tool_calls", 0), chunk(bad, index=1), chunk({}, "tool_calls", 1)]
    second = [chunk(bad, index=0), chunk({}, "tool_calls", 0), chunk(good, index=1), chunk({}, "tool_calls", 1)]
    sent = through(guard, first, second)
    for index in (0, 1):
        own = [each for each in sent if each["choices"][0]["index"] == index]
        assert calls_of(read(own)) == [("get_weather", json.loads(GOOD))]
    assert guard.outcome is Outcome.RERUN


@pytest.mark.parametrize("escape", [r"\ud83d", r"\ude00 \ud83d\ude00"])
def test_half_a_character_in_escapes_is_found(escape: str) -> None:
    guard = Guard(GuardConfig(), tools_request())
    arguments = f'{{"city": "a{escape}", "days": 2}}'
    through(guard, [chunk(calls(call(0, "get_weather", arguments))), chunk({}, "tool_calls")])
    assert guard.verdicts[0].outcome is Outcome.TRUNCATED


def test_misuse_is_an_error() -> None:
    guard = Guard(GuardConfig(), tools_request())
    with pytest.raises(ValueError, match="rerun"):
        guard.restart("standard")
    with pytest.raises(ValueError, match="give up"):
        guard.give_up()


@pytest.mark.parametrize("reason", ["stop", "tool_calls"])
@pytest.mark.parametrize("on_failure", ["error", "unclean"])
def test_a_call_after_the_finish_reason_is_no_complete_answer(reason: str, on_failure: str) -> None:
    """It was dropped, and the stream ended as if the model had called nothing."""
    guard = Guard(GuardConfig(on_failure=on_failure), tools_request())
    before = [chunk({"role": "assistant", "content": "I look it up."}), chunk({}, "stop")]
    late = chunk(calls(call(0, "get_weather", "{}")))
    sent = through(guard, [*before, late, chunk({}, reason)], [*before])
    assert "error" in sent[-1]
    assert guard.state is not GuardState.DONE
    assert not any(each.get("choices") and each["choices"][0]["delta"].get("tool_calls") for each in sent)


def test_what_follows_the_finish_reason_without_a_call_changes_nothing() -> None:
    guard = Guard(GuardConfig(), tools_request())
    sent = through(guard, [chunk({"content": "hello"}), chunk({}, "stop"), chunk({}), chunk({"tool_calls": []})])
    assert read(sent)["error"] is None
    assert guard.state is GuardState.DONE


CUT_CHARACTER = '{"city": "B\ufffd'
WRONG = '{"city": "Bern", "days": "two"}'
LOST = "<tool_call>\n<function=get_weather days>\n<parameter=city>\nBern\n</parameter>\n</function>\n</tool_call>"
LEFT_EARLY = {
    "a cut character": [chunk(calls(call(0, "get_weather", ""))), chunk(calls(call(0, "", CUT_CHARACTER)))],
    "a mismatch": [chunk(calls(call(0, "get_weather", WRONG))), chunk(calls(call(1, "get_weather", '{"ci')))],
    "a lost call": [chunk({"content": LOST}), chunk(calls(call(0, "get_weather", "")))],
}


@pytest.mark.parametrize("case", LEFT_EARLY)
def test_an_attempt_that_must_run_again_is_left_at_once_if_somebody_is_there(case: str) -> None:
    guard = Guard(GuardConfig(), tools_request(), hasty=True)
    *before, last = LEFT_EARLY[case]
    assert [sent for each in before for sent in guard.feed(each)] == []
    assert guard.state is GuardState.OPEN
    assert guard.feed(last) == []
    assert guard.state is GuardState.RERUN
    (error,) = guard.give_up()  # nobody was: half an answer is none
    assert error["error"]["code"] == "integrity_violation"


@pytest.mark.parametrize("case", LEFT_EARLY)
def test_an_attempt_is_read_to_its_end_where_unclean_answers_are_wanted(case: str) -> None:
    guard = Guard(GuardConfig(on_failure="unclean"), tools_request(), hasty=True)
    patient = Guard(GuardConfig(on_failure="unclean"), tools_request())
    for each in LEFT_EARLY[case]:
        assert guard.feed(each) == patient.feed(each)
        assert guard.state is patient.state


@pytest.mark.parametrize("case", ["a cut character", "a mismatch"])
def test_what_the_model_means_is_read_to_its_end_the_second_time(case: str) -> None:
    text = WRONG if case == "a mismatch" else '{"city": "B\ufffd", "days": 2}'
    chunks = [chunk(calls(call(0, "get_weather", text))), chunk(calls(call(1, "get_weather", GOOD))), chunk({}, "stop")]
    guard = Guard(GuardConfig(), tools_request(), hasty=True)
    sent = read(through(guard, chunks, chunks))
    assert [each["arguments"] for each in sent["calls"]] == [text, GOOD]
    assert guard.state is GuardState.DONE


def test_a_call_that_was_lost_in_the_text_is_followed_by_no_other() -> None:
    guard = Guard(GuardConfig(), tools_request())
    sent = [
        chunk({"content": LOST}),
        chunk(calls(call(0, "plan_trip", GOOD))),
        chunk(calls(call(1, "plan_trip", GOOD))),
    ]
    assert [out for each in sent for out in guard.feed(each)] == []
    assert guard.state is GuardState.RERUN


@pytest.mark.parametrize("size", [1, 3, 1000])
def test_nothing_of_a_list_of_calls_written_as_text_stays_in_front_of_the_reruns_call(size: int) -> None:
    written = f'[{{"name": "get_weather", "arguments": {GOOD}}}]'
    pieces = [chunk({"content": written[place : place + size]}) for place in range(0, len(written), size)]
    rerun = [chunk(calls(call(0, "get_weather", GOOD))), chunk({}, "tool_calls")]
    message = read(through(Guard(GuardConfig(), tools_request()), [*pieces, chunk({}, "stop")], rerun))
    assert (message["content"], calls_of(message)) == ("", [("get_weather", json.loads(GOOD))])
