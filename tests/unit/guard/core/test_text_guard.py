"""The guard over strict JSON answers: streamed as a valid prefix, continued by a rerun, never contradicted."""

import json
from typing import Any

import pytest
from support.guard_harness import CLEAN, broken, chunk, chunks_of, healed, json_request, read, through

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
IN_BLOCKS = [
    f"```json\n{CITY}\n```", f"```\n{CITY}", f"\n\n```JSON \r\n{CITY}```\n", f"````json\n{CITY}\n````",
    f"```json\n\n{CITY}\n\n```\n\n",
]  # fmt: skip


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize("hold", [True, False])
@pytest.mark.parametrize("text", IN_BLOCKS)
def test_a_document_in_a_code_block_is_delivered_without_it(text: str, hold: bool, size: int) -> None:
    guard = Guard(GuardConfig(hold_json=hold), json_request(response_format={"type": "json_object"}))
    parts = [chunk({"content": text[place : place + size]}) for place in range(0, len(text), size)]
    sent = through(guard, [*parts, chunk({}, "stop")])
    assert read(sent)["content"].strip() == CITY
    assert guard.outcome is Outcome.RESCUED


@pytest.mark.parametrize("size", [1, 4, 1000])
@pytest.mark.parametrize(
    "text",
    [
        f"Here it is:\n```json\n{CITY}\n```", f"```json\n{CITY}\n```\nThat is it.",
        f"```json\n{CITY}\n```\n```json\n{{}}\n```",
        f"``{CITY}``", "```json", "`", f"```{CITY}```", "```json\n```", f"{CITY}\n```",
    ],
)  # fmt: skip
def test_a_document_with_more_than_a_code_block_around_it_is_none(text: str, size: int) -> None:
    guard = Guard(GuardConfig(), json_request(response_format={"type": "json_object"}))
    parts = [chunk({"content": text[place : place + size]}) for place in range(0, len(text), size)]
    through(guard, [*parts, chunk({}, "stop")])
    assert guard.verdicts[0].outcome in (Outcome.INVALID_JSON, Outcome.TRUNCATED)


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
