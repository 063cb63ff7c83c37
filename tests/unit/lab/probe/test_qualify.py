"""Qualifying an engine: every fault that drafts are known to make is found, and a sound engine passes."""

import asyncio
from typing import Any

import pytest

from lab.deltas import fold_deltas
from lab.probe.departure import departure, wrong_number
from lab.probe.qualify import PAIR_TESTS, Ask, Heard, QualifyTerms, compare, qualify
from lab.probe.trace import Trace
from lab.sim import SimSettings
from lab.sim.faults import FAULTS
from lab.sim.generation import Generation
from policies.qualification import FORBIDDEN
from serve.config.signed_verdicts import EngineVerdict


def simulated(**settings: Any) -> Ask:
    """A simulated engine that drafts beside one that doesn't, without a clock or a wire."""
    sound = {name: value for name, value in settings.items() if name not in ("faults", "slips")}
    engines = {True: SimSettings(num_speculative_tokens=3, **settings), False: SimSettings(**sound)}

    async def ask(drafts: bool, body: dict[str, Any]) -> Heard:
        generation = Generation(body, engines[drafts])
        if generation.transport:
            return Heard(None, Trace(), generation.transport)
        message = {"role": "assistant", **fold_deltas([delta for delta in generation.deltas() if delta])}
        choice = {"index": 0, "message": message, "finish_reason": generation.finish_reason}
        return Heard({"choices": [choice]}, Trace())

    return ask


def qualified(ask: Ask, **terms: Any) -> dict[str, EngineVerdict]:
    return asyncio.run(qualify(ask, QualifyTerms(**terms), lambda _: None))


def findings(verdicts: dict[str, EngineVerdict]) -> dict[str, str]:
    return {name: verdict.finding for name, verdict in verdicts.items()}


def failed(verdicts: dict[str, EngineVerdict]) -> set[str]:
    return {name for name, verdict in verdicts.items() if verdict.finding == "failed"}


def test_a_sound_engine_passes_100_times_of_100() -> None:
    ask = simulated(max_calls=1, content_tokens=(1, 4))
    for seed in range(100):
        found = findings(qualified(ask, seed=seed, tolerance=0.5, corruption=0.3))
        # It tells no log-probabilities: of them nothing is known.
        assert found == {**dict.fromkeys(FORBIDDEN, "passed"), "logprobs": "undecided"}


@pytest.mark.parametrize("fault", FAULTS)
def test_every_planted_fault_is_found(fault: str) -> None:
    verdicts = qualified(simulated(faults={fault: 0.6}), tolerance=0.5, corruption=0.3)
    kinds = FAULTS[fault].kinds
    assert failed(verdicts) >= ({"tools"} if "calls" in kinds else set()) | ({"json"} if "json" in kinds else set())
    assert all(verdicts[name].why and verdicts[name].bad for name in failed(verdicts))


def test_a_rare_slip_in_an_identifier_fails_the_echo_and_nothing_else() -> None:
    verdicts = qualified(simulated(slips=0.01), tolerance=0.5)
    assert failed(verdicts) == {"echo"}
    assert verdicts["echo"].at_least > 0
    assert " in place of " in verdicts["echo"].why


def test_an_engine_that_never_answers_stays_undecided_and_is_given_up_soon() -> None:
    async def silent(drafts: bool, body: dict[str, Any]) -> Heard:
        return Heard(None, Trace(), "refused")

    verdicts = qualified(silent)
    assert set(findings(verdicts).values()) == {"undecided"}
    assert verdicts["tools"].why == "refused"


def test_no_two_prompts_are_alike_and_all_fit() -> None:
    for test in PAIR_TESTS.values():
        bodies = [test.body(number, QualifyTerms(context=1000)) for number in range(60)]
        texts = [body["messages"][0]["content"] for body in bodies]
        assert len(set(texts)) == len(texts)
        assert all(len(text) / 4 + body["max_tokens"] < 1000 for text, body in zip(texts, bodies, strict=True))


def trace(ids: list[int], logprobs: list[float] | None = None, tops: dict[int, float] | None = None) -> Trace:
    """Tokens of which each, if it has a log-probability, is the likeliest but for those of `tops`."""
    numbers = logprobs or []
    best = [{f"token_id:{token}": number for token, number in (tops or {}).items()} for _ in numbers]
    own = zip(best, ids, numbers, strict=False)
    return Trace(
        [1], ids, ["" for _ in numbers], numbers, [{**top, f"token_id:{token}": each} for top, token, each in own]
    )


STANDARD = trace([5, 6, 7], [-0.1, -0.1, -0.1], {8: -0.4, 9: -6.0})


@pytest.mark.parametrize(
    ("ours", "kind"),
    [
        ([5, 6, 7], "none"),
        ([5, 8, 1], "tie"),
        ([5, 9, 7], "wrong"),
        ([5, 3, 7], "wrong"),  # not among the likeliest, so it is at most as likely as the last of them
        ([5, 6], "wrong"),
        ([5, 6, 7, 7], "wrong"),
        ([], "unknown"),
    ],
)
def test_the_first_other_token_tells_a_tie_from_a_fault(ours: list[int], kind: str) -> None:
    assert departure(trace(ours), STANDARD, may_end=False).kind == kind


def test_an_answer_that_was_stopped_may_tell_more_or_fewer_tokens() -> None:
    assert departure(trace([5, 6]), STANDARD, may_end=True).kind == "none"
    assert departure(trace([5, 6, 7, 7]), STANDARD, may_end=True).kind == "none"


def test_without_log_probabilities_nobody_tells_a_tie() -> None:
    assert departure(trace([5, 9]), trace([5, 6]), may_end=False).kind == "unknown"
    assert departure(trace([5, 6]), trace([5, 6]), may_end=False).kind == "none"


def test_numbers_of_the_same_tokens_must_be_nearly_the_same() -> None:
    assert not wrong_number(trace([5, 6], [-0.1, -0.4]), trace([5, 6], [-0.1, -0.1]))
    assert "token 1" in wrong_number(trace([5, 6], [-0.1, -3.4]), trace([5, 6], [-0.1, -0.1]))
    assert not wrong_number(trace([5, 6, 7], [-0.1, -0.1, -9.0]), trace([5, 8, 7], [-0.1, -0.1, -0.1]))


PROSE = {"messages": [], "stream": False}


def said(text: str, tokens: Trace) -> Heard:
    message = {"role": "assistant", "content": text}
    return Heard({"choices": [{"index": 0, "message": message, "finish_reason": "stop"}]}, tokens)


@pytest.mark.parametrize(
    ("ours", "tokens", "bad"),
    [
        ("a", trace([5, 6, 7]), 0),
        ("b", trace([5, 8]), 0),
        ("b", trace([5, 9, 7]), 1),
        ("a", Trace(), 0),
        ("b", Trace(), None),  # prose that differs, of an engine that tells no tokens
    ],
)
def test_prose_is_judged_by_its_tokens(ours: str, tokens: Trace, bad: int | None) -> None:
    counts = compare(PROSE, said(ours, tokens), said("a", STANDARD)).counts
    assert (counts and counts.candidate_bad) == bad


def test_the_same_tokens_read_as_another_answer_are_the_parsers_fault() -> None:
    body = PAIR_TESTS["tools"].body(0, QualifyTerms())
    call = {"id": "a", "type": "function", "function": {"name": "get_weather", "arguments": '{"city": "Oslo"}'}}
    message = {"role": "assistant", "content": None, "tool_calls": [call]}
    right = Heard({"choices": [{"index": 0, "message": message, "finish_reason": "tool_calls"}]}, STANDARD)
    for lost in (said("get_weather", STANDARD), said("", STANDARD)):
        pair = compare(body, lost, right)
        assert pair.counts == (0, 1, 0, 0)
    assert compare(body, right, right).counts == (1, 0, 0, 0)
    assert compare(body, said("", trace([5, 8])), right).counts is None  # after a tie, a weak model may not call at all
