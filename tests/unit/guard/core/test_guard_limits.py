"""Answers that the request's own limits cut, and answers beyond the guard's: neither is anything but explicit."""

import json
from typing import Any

import pytest
from support.guard_harness import call, calls, calls_of, chunk, json_request, read, through, tools_request

from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState, Outcome, WholeGuard

GOOD = '{"city": "Bern", "days": 2}'
CUT = '{"city": "'


def stopped(reason: Any, finish: str = "tool_calls", delta: Any = None) -> dict[str, Any]:
    last = chunk(delta or {}, finish)
    last["choices"][0]["stop_reason"] = reason
    return last


def whole(message: dict[str, Any], finish: str, reason: Any) -> dict[str, Any]:
    choice = {"index": 0, "message": message, "finish_reason": finish, "stop_reason": reason}
    return {"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]}


def unsaid(finish: str) -> dict[str, Any]:
    """The end of an engine that does not tell where it stopped."""
    return chunk({}, finish)


ASKED = [("Osaka", {"stop": ["x", "Osaka"]}), ("Osaka", {"stop": "Osaka"}), (77, {"stop_token_ids": [5, 77]})]


@pytest.mark.parametrize("choice", ["auto", "required", {"type": "function", "function": {"name": "get_weather"}}])
@pytest.mark.parametrize(("reason", "asked"), ASKED)
@pytest.mark.parametrize("finish", ["tool_calls", "stop"])
@pytest.mark.parametrize("arguments", [CUT, "", '{"city": "Be', '{"city": "Bern", "days": 2'])
def test_a_call_that_the_requests_own_stop_cut_is_left_out_and_nobodys_fault(
    arguments: str, finish: str, reason: Any, asked: dict[str, Any], choice: Any
) -> None:
    body = tools_request(**asked, tool_choice=choice)
    guard = Guard(GuardConfig(), body)
    sent = through(guard, [chunk(calls(call(0, "get_weather", arguments))), stopped(reason, finish)])
    message = read(sent)
    assert (message["calls"], message["finish"], guard.state) == ([], ["stop"], GuardState.DONE)
    assert (guard.verdicts[0].outcome, guard.verdicts[0].counts) == (Outcome.TRUNCATED, False)
    assert sent[-1]["choices"][0]["stop_reason"] == reason
    entry = {key: value for key, value in call(0, "get_weather", arguments).items() if key != "index"}
    answer = WholeGuard(GuardConfig(), body).check(whole({"content": None, "tool_calls": [entry]}, finish, reason))
    assert answer is not None
    assert (answer["choices"][0]["message"]["tool_calls"], answer["choices"][0]["finish_reason"]) == ([], "stop")
    assert answer["choices"][0]["stop_reason"] == reason


@pytest.mark.parametrize(
    ("reason", "asked"),
    [("Osaka", {}), ("Osaka", {"stop": "Kyoto"}), (77, {"stop_token_ids": [5]}), (77, {"stop": "77"}),
     (None, ASKED[0][1]), (True, {"stop_token_ids": [1]}), (["Osaka"], {"stop": "Osaka"}), ({}, {"stop": [{}]})],
)  # fmt: skip
def test_a_stop_that_the_request_did_not_ask_for_excuses_nothing(reason: Any, asked: dict[str, Any]) -> None:
    guard = Guard(GuardConfig(), tools_request(**asked))
    through(guard, [chunk(calls(call(0, "get_weather", CUT))), stopped(reason)])
    assert (guard.state, guard.verdicts[0].counts) == (GuardState.FAILED, True) or guard.state is GuardState.RERUN


def test_sglangs_word_for_the_stop_counts_as_vllms() -> None:
    guard = Guard(GuardConfig(), tools_request(stop="Osaka"))
    last = chunk({}, "tool_calls")
    last["choices"][0]["matched_stop"] = "Osaka"
    sent = through(guard, [chunk(calls(call(0, "get_weather", CUT))), last])
    assert (read(sent)["calls"], guard.state, guard.verdicts[0].counts) == ([], GuardState.DONE, False)
    assert [each["choices"][0].get("matched_stop") for each in sent] == [None] * (len(sent) - 1) + ["Osaka"]
    entry = {key: value for key, value in call(0, "get_weather", CUT).items() if key != "index"}
    choice = {"index": 0, "message": {"content": None, "tool_calls": [entry]}, "finish_reason": "tool_calls"}
    answer = WholeGuard(GuardConfig(), tools_request(stop="Osaka")).check(
        {"id": "x", "choices": [{**choice, "matched_stop": "Osaka"}]}
    )
    assert answer is not None
    assert answer["choices"][0]["message"]["tool_calls"] == []


@pytest.mark.parametrize("asked", [{"stop": ["x", "Osaka"]}, {"stop": "Osaka"}, {"stop_token_ids": [77]}])
def test_a_cut_call_that_perhaps_the_stop_cut_is_rerun_blames_no_pool_and_the_error_says_so(asked: Any) -> None:
    guard = Guard(GuardConfig(reruns=1), tools_request(**asked))
    attempt = [chunk(calls(call(0, "get_weather", CUT))), unsaid("tool_calls")]
    message = read(through(guard, attempt, attempt))
    assert (message["calls"], guard.state) == ([], GuardState.FAILED)
    assert [(verdict.outcome, verdict.counts) for verdict in guard.verdicts] == [(Outcome.TRUNCATED, False)] * 2
    assert "`stop` may have cut it" in message["error"]["message"]


def test_an_engine_that_does_not_tell_where_it_stopped_is_judged_for_all_else() -> None:
    for asked, arguments, verdict in (
        ({"stop": "Osaka"}, GOOD, (Outcome.CLEAN, True)),
        ({"stop": "Osaka"}, '{"city": "Bern", "days": 99}', (Outcome.SCHEMA_MISMATCH, True)),
        ({"stop": []}, CUT, (Outcome.TRUNCATED, True)),
        ({}, CUT, (Outcome.TRUNCATED, True)),
    ):
        guard = Guard(GuardConfig(reruns=0), tools_request(**asked))
        through(guard, [chunk(calls(call(0, "get_weather", arguments))), unsaid("tool_calls")])
        assert (guard.verdicts[0].outcome, guard.verdicts[0].counts) == verdict


def test_calls_before_the_stop_are_delivered() -> None:
    guard = Guard(GuardConfig(), tools_request(stop="Osaka"))
    sent = through(guard, [
        chunk(calls(call(0, "get_weather", GOOD))), chunk(calls(call(1, "plan_trip", CUT))), stopped("Osaka"),
    ])  # fmt: skip
    assert [name for name, _ in calls_of(read(sent))] == ["get_weather"]
    assert read(sent)["finish"] == ["tool_calls"]


@pytest.mark.parametrize("leak", ["<|tool_call_begin|>functions.ge", "<tool_call>\n<function=ge", '<tool_call>\n{"na'])
def test_the_text_of_a_call_that_the_stop_cut_is_left_out_too(leak: str) -> None:
    guard = Guard(GuardConfig(), tools_request(stop=["Osaka"]))
    sent = through(guard, [stopped("Osaka", "stop", {"content": f"Hm. {leak}"})])
    assert (read(sent)["content"], read(sent)["finish"]) == ("Hm. ", ["stop"])
    assert not guard.verdicts[0].counts


def test_a_document_and_a_silence_that_the_stop_made_are_the_requests_own() -> None:
    guard = Guard(GuardConfig(), json_request(stop=["Osaka"]))
    sent = through(guard, [chunk({"content": CUT}), stopped("Osaka", "stop")])
    assert (read(sent)["content"], guard.state) == (CUT, GuardState.DONE)
    silent = Guard(GuardConfig(), tools_request(stop=["Osaka"]))
    assert read(through(silent, [stopped("Osaka", "stop")]))["finish"] == ["stop"]
    assert silent.state is GuardState.DONE


def test_calls_names_and_choices_without_end_are_the_engines_fault() -> None:
    many = [chunk(calls(call(index, "get_weather", GOOD))) for index in range(600)]
    name = [chunk(calls({"index": 0, "id": "a", "function": {"name": letter * 500}})) for letter in "abcdefghi"]
    choices = [chunk({"content": "x"}, index=index) for index in range(200)]
    for stream, outcome in ((many, Outcome.INVALID_JSON), (name, Outcome.UNKNOWN_TOOL), (choices, Outcome.FAILED)):
        guard = Guard(GuardConfig(), tools_request())
        for each in stream:
            guard.feed(each)
        assert (guard.state, guard.verdicts[0].outcome) == (GuardState.RERUN, outcome)


def test_space_without_end_behind_a_document_ends_the_answer_and_counts_against_the_pool() -> None:
    guard, number = Guard(GuardConfig(), json_request()), 0
    sent = guard.feed(chunk({"content": GOOD}))
    while not guard.over:
        number += 1
        sent += guard.feed(chunk({"content": " \n" * 50}))
    assert number < 10
    last = read([*sent, *guard.finish()])
    assert (last["content"].rstrip(), last["finish"]) == (GOOD, ["stop"])
    assert (guard.state, guard.outcome) == (GuardState.DONE, Outcome.INVALID_JSON)
    assert guard.report == {}  # the document is right


def test_what_an_engine_says_behind_space_without_end_is_no_part_of_the_document() -> None:
    guard = Guard(GuardConfig(), json_request())
    stream = [chunk({"content": GOOD}), *[chunk({"content": " \n" * 50})] * 3_000, chunk({"content": "}"})]
    assert read(through(guard, [*stream, chunk({}, "stop")]))["content"].rstrip() == GOOD
    broken = Guard(GuardConfig(), json_request())
    through(broken, [chunk({"content": GOOD}), chunk({"content": " "}), chunk({"content": "}"}), chunk({}, "stop")])
    assert broken.verdicts[0].outcome is Outcome.INVALID_JSON


def test_one_of_several_answers_does_not_end_them_all() -> None:
    guard = Guard(GuardConfig(), json_request(n=2))
    for _ in range(9):
        guard.feed(chunk({"content": GOOD if _ == 0 else " " * 100}))
    assert not guard.over


@pytest.mark.parametrize("piece", ["\n", " ", "\t\n  "])
@pytest.mark.parametrize("begun", ["", "{", '{"city":', '{"city": "Bern"', '{"city": "Bern", "days": 2'])
def test_a_document_or_call_that_is_lost_in_space_runs_elsewhere_and_goes_on_there(begun: str, piece: str) -> None:
    document, tools = Guard(GuardConfig(), json_request()), Guard(GuardConfig(), tools_request())
    sent = document.feed(chunk({"content": begun}))
    tools.feed(chunk(calls(call(0, "get_weather", begun))))
    for number in range(1_000):
        sent += document.feed(chunk({"content": piece})) if document.state is GuardState.OPEN else []
        if tools.state is GuardState.OPEN:
            tools.feed(chunk(calls({"index": 0, "function": {"arguments": piece}})))
        assert number < 600 or GuardState.OPEN not in (document.state, tools.state)
    for guard in (document, tools):
        assert (guard.state, guard.verdicts[0].outcome) == (GuardState.RERUN, Outcome.INVALID_JSON)
    document.restart("standard")
    sent += through(document, [chunk({"content": GOOD}), chunk({}, "stop")])
    assert json.loads(read(sent)["content"]) == json.loads(GOOD)
    assert document.outcome is Outcome.RERUN


def test_an_indented_document_is_not_lost_in_space() -> None:
    deep: Any = 1
    for _ in range(60):
        deep = {"a": deep}
    text = json.dumps({"city": "Bern", "days": 2, "notes": deep}, indent=8)
    guard = Guard(GuardConfig(), {"response_format": {"type": "json_object"}})
    stream = [chunk({"content": text[start : start + 7]}) for start in range(0, len(text), 7)]
    assert read(through(guard, [*stream, chunk({}, "stop")]))["content"] == text
    assert guard.outcome is Outcome.CLEAN
