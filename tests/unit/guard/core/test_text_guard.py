"""The guard over strict JSON answers: streamed as a valid prefix, continued by a rerun, never contradicted."""

import json
from typing import Any

import pytest
from support.guard_harness import (
    CLEAN,
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
from serve.guard.core import Guard, Outcome, WholeGuard
from serve.guard.core.expectation import LazyRequest
from serve.request.completion import parse


@pytest.mark.parametrize("strict", [True, False])
@pytest.mark.parametrize(
    ("fault", "outcome"),
    [
        ("truncated_string", Outcome.TRUNCATED),
        ("truncated_character", Outcome.TRUNCATED),
        ("double_brace", Outcome.INVALID_JSON),
        ("marker_leak", Outcome.MARKER_LEAK),
    ],
)
def test_json_answers_are_continued_by_the_rerun_where_they_broke(fault: str, outcome: Outcome, strict: bool) -> None:
    body = json_request(5, strict)
    sent, guard = healed(body, broken(fault), CLEAN)
    assert guard.verdicts[0].outcome is outcome
    assert read(sent)["content"] == read(chunks_of(body, CLEAN))["content"]


def test_a_json_answer_streams_but_for_its_last_character_and_space_that_waits_for_more() -> None:
    body = json_request()
    *chunks, finish, _ = chunks_of(body, SimSettings())
    guard = Guard(GuardConfig(), body)
    early = [each for given in chunks for each in guard.feed(given)]
    text = read(early)["content"]
    spaced = [each for each in chunks if (each["choices"][0]["delta"].get("content") or "").endswith((" ", "\n"))]
    assert len(early) >= len(chunks) - len(spaced) - 1
    whole = read([*early, *guard.feed(finish)])["content"]
    assert whole.startswith(text)
    assert whole[len(text) :] == "}"


def test_a_rerun_whose_document_differs_can_not_contradict_what_went_out() -> None:
    body = json_request(5)
    other = SimSettings(seed=9)
    sent, guard = healed(body, broken("truncated_string"), other)
    message = read(sent)
    assert message["error"]["code"] == "integrity_violation"
    assert guard.verdicts[1].outcome is Outcome.FAILED
    assert not guard.verdicts[1].counts, "the other pool did nothing wrong"
    held, guard = healed(body, broken("truncated_string"), other, settings=GuardConfig(hold_json=True))
    assert read(held)["content"] == read(chunks_of(body, other))["content"]
    assert guard.outcome is Outcome.RERUN


def test_a_rerun_whose_document_ends_within_what_went_out_contradicts_it() -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "integer"}}}
    guard = Guard(GuardConfig(), {**json_request(), "response_format": form})
    sent = through(guard, [chunk({"content": "1234"})], [chunk({"content": "12"}), chunk({}, "stop")])
    assert read(sent)["error"]["code"] == "integrity_violation"


def test_a_document_against_its_strict_schema_keeps_its_last_character() -> None:
    body = json_request()
    guard = Guard(GuardConfig(reruns=0), body)
    sent = through(guard, [chunk({"content": '{"city": "Bern"}'}), chunk({}, "stop")])
    assert read(sent)["content"] == '{"city": "Bern"'
    assert read(sent)["error"]


CITY = '{"city": "```sh\\nls\\n```"}'
# As models write it where no grammar keeps them from it; from reports.
AROUND = [
    f"```json\n{CITY}\n```", f"```\n{CITY}", f"\n\n```JSON \r\n{CITY}```\n", f"````json\n{CITY}\n````",
    f"```json\n\n{CITY}\n\n```\n\n", f"{CITY}\n```", f"``{CITY}``",  # openai/codex-plugin-cc#583
    f"Here it is:\n```json\n{CITY}\n```", f"Here it is:\n\n{CITY}",  # Alcova-AI/adk-anthropic-go#8
    f"```json\n{CITY}\n```\nThat is it.", f"{CITY}\n\nThat is it.", f"Thinking it is Bern, I say: {CITY}.",
    f"It is Bern.\n</think>\n\n{CITY}", f"<think>\n\n</think>\n\n{CITY}", f"<think>\nBern.\n</think>{CITY}",
    f"{CITY}<|im_end|>", f"{CITY}</s>", f"<json>{CITY}</json>", f"\ufeff{CITY}",
]  # fmt: skip
TOO_MUCH = [
    f"```json\n{CITY}\n```\n```json\n{{}}\n```", f"{CITY}{CITY}", f"{CITY}\n{CITY}", f"Not {{}} but {CITY}",
    f"{CITY}, see [1]", "```json", "`", "```json\n```", "It is Bern.", f"Here it is: {CITY[:-1]}", f"{CITY}}}",
]  # fmt: skip


def in_pieces(text: str, size: int, *calls: dict[str, Any]) -> list[dict[str, Any]]:
    pieces = [chunk({"content": text[place : place + size]}) for place in range(0, len(text), size)]
    return [*pieces, *map(chunk, calls), chunk({}, "tool_calls" if calls else "stop")]


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("text", AROUND)
def test_a_document_is_delivered_without_what_a_model_writes_around_it(text: str, hold: bool, size: int) -> None:
    guard = Guard(GuardConfig(hold_json=hold), json_request(response_format={"type": "json_object"}))
    assert read(through(guard, in_pieces(text, size)))["content"].strip() == CITY
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("text", TOO_MUCH)
def test_words_with_several_documents_or_none_are_no_document(text: str, size: int) -> None:
    guard = Guard(GuardConfig(), json_request(response_format={"type": "json_object"}))
    through(guard, in_pieces(text, size))
    assert guard.verdicts[0].outcome in (Outcome.INVALID_JSON, Outcome.TRUNCATED)


@pytest.mark.parametrize("size", [1, 4, 1000])
def test_of_any_json_no_word_goes_out_before_the_document(size: int) -> None:
    form = {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}
    sent = through(Guard(GuardConfig(reruns=0), json_request(response_format=form)), in_pieces('true: {"a": 1}', size))
    assert read(sent)["content"] in ('{"a": 1}', "tru")
    assert bool(read(sent)["error"]) is (read(sent)["content"] == "tru")


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "text",
    [
        'I look.\n<tool_call>\n{"name": "get_weather", "arguments": {}}\n</tool_call>',
        'I look.\n[TOOL_CALLS]{"city": "Bern"}', 'I call get_weather with {"city": "Bern", "days": 3}.',
    ],
)  # fmt: skip
def test_an_object_that_may_be_a_lost_call_is_no_document(text: str, size: int) -> None:
    guard = Guard(GuardConfig(), tools_request(response_format={"type": "json_object"}))
    through(guard, in_pieces(text, size))
    assert guard.verdicts[0].outcome in (Outcome.INVALID_JSON, Outcome.MARKER_LEAK)


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("words", ["I look it up.", "I look {it} up, as [1] says.\n", " \n"])
def test_words_beside_calls_are_left_out_where_a_document_is_due(words: str, size: int) -> None:
    made = call(0, "get_weather", '{"city": "Bern", "days": 3}')  # vllm-project/vllm#16313
    guard = Guard(GuardConfig(), tools_request(response_format={"type": "json_object"}))
    message = read(through(guard, in_pieces(words, size, calls(made))))
    assert calls_of(message) == [("get_weather", {"city": "Bern", "days": 3})]
    assert (message["content"].strip(), message["finish"]) == ("", ["tool_calls"])
    assert guard.outcome is (Outcome.RESCUED if words.strip() else Outcome.CLEAN)


def test_a_refusal_stands_for_the_document_or_the_call() -> None:
    for body in (json_request(), tools_request(tool_choice="required")):
        guard = Guard(GuardConfig(), body)
        sent = through(guard, [chunk({"refusal": "I can't"}), chunk({"refusal": " help."}), chunk({}, "stop")])
        assert "".join(each["choices"][0]["delta"].get("refusal", "") for each in sent) == "I can't help."
        assert read(sent)["finish"] == ["stop"]
        message = {"role": "assistant", "content": None, "refusal": "I can't help."}
        answer = {"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}
        assert WholeGuard(GuardConfig(), body).check(json.loads(json.dumps(answer))) == answer
        assert guard.outcome is Outcome.CLEAN


FITS = '{"city": "Bern", "days": 3}'


@pytest.mark.parametrize("name", ["reasoning", "reasoning_content"])
@pytest.mark.parametrize("content", [None, ""])
def test_a_document_that_came_as_a_thought_is_delivered(name: str, content: str | None) -> None:
    message = {name: f"\n{FITS}\n", "content": content}
    whole = WholeGuard(GuardConfig(), json_request())
    answer = whole.check({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]})
    assert answer is not None
    assert answer["choices"][0]["message"]["content"].strip() == FITS
    guard = Guard(GuardConfig(), json_request())
    parts = [chunk({name: FITS[place : place + 3]}) for place in range(0, len(FITS), 3)]
    sent = through(guard, [*parts, chunk({"content": content}), chunk({}, "stop")])
    assert read(sent)["content"] == FITS
    assert guard.outcome is whole.guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize(
    ("thought", "reason"),
    [(f"So: {FITS}", "stop"), ('{"city": "Bern"}', "stop"), (FITS[:-1], "stop"), ("", "stop"), (FITS, "length")],
)
def test_a_thought_that_is_not_the_whole_document_stays_one(thought: str, reason: str) -> None:
    guard = Guard(GuardConfig(), json_request())
    through(guard, [chunk({"reasoning": thought}), chunk({}, reason)])
    assert [each.outcome for each in guard.verdicts[0].defects] == [Outcome.TRUNCATED]


PLAN = {"type": "object", "properties": {"city": {"type": "string"}}, "required": ["city"]}


def asked_of_vllm(structured: dict[str, Any]) -> LazyRequest:
    body = {"model": "m", "messages": [{"role": "user", "content": "Plan."}], "structured_outputs": structured}
    return LazyRequest(parse(json.dumps(body).encode()))


@pytest.mark.parametrize("asked", [{"json": PLAN}, {"json": json.dumps(PLAN)}, {"json_object": True}])
def test_json_that_vllms_own_field_asks_for_is_judged_like_that_of_a_response_format(asked: dict[str, Any]) -> None:
    body = asked_of_vllm(asked)
    for text, outcome in [('{"city": "Bern"}', Outcome.CLEAN), ('{"city": "Be', Outcome.TRUNCATED), ("Bern", None)]:
        guard = Guard(GuardConfig(reruns=0), body)
        sent = through(guard, [chunk({"content": text}), chunk({}, "stop")])
        assert bool(read(sent).get("error")) is (outcome is not Outcome.CLEAN)
        assert guard.verdicts[0].outcome in (outcome or Outcome.INVALID_JSON,)


@pytest.mark.parametrize("asked", [{"regex": "Be.*"}, {"choice": ["Bern"]}, {"json": "{no schema"}, {"json": 1}, {}])
def test_what_vllms_own_field_asks_for_without_json_is_no_document(asked: dict[str, Any]) -> None:
    guard = Guard(GuardConfig(reruns=0), asked_of_vllm(asked))
    sent = through(guard, [chunk({"content": "Bern"}), chunk({}, "stop")])
    assert read(sent)["content"] == "Bern"
    assert guard.verdicts[0].outcome is Outcome.CLEAN
