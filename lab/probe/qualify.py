"""Qualifies an engine that drafts: the same prompts to it and to one that does not, until each test is certain.

Each test is a kind of request. Its trials are pairs of answers, and what counts is which of the two was bad, as with
candidates that get copies of real traffic (`serve.shadow.pairs`). Only that of identifiers is a test of each of them.
"""

from __future__ import annotations

import asyncio
import itertools
from collections.abc import Awaitable, Callable, Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, NamedTuple

from lab.probe.check import guarded
from lab.probe.departure import Departure, departure, wrong_number
from lab.probe.grid import PROMPTS, ProbeCell
from lab.probe.plan import TRACED
from lab.probe.trace import Trace
from lab.probe.trial_log import CLEAN
from policies.qualification import TestFinding
from serve.config.signed_verdicts import EngineVerdict
from serve.echo.prompt import EchoPrompt
from serve.quarantine.sequential import SequentialTest, lower_bound, upper_bound
from serve.shadow.pairs import PairCounts, judge

_FINDINGS: Mapping[str, TestFinding] = {
    "promote": "passed", "reject": "failed", "not yet": "undecided",
    "sound": "passed", "corrupt": "failed",
}  # fmt: skip
_TOP = 5
# Of the standard engine, which is not on trial: what tells a tie from a wrong token.
_WITH_TOPS: dict[str, Any] = {**TRACED, "top_logprobs": _TOP, "return_tokens_as_token_ids": True}
_IDS: dict[str, Any] = {"return_token_ids": True}
_FILLER = "The house is old, and nobody has counted its windows since the year in which the river came. "
_STOPS = ["\n\nObservation:", "<<END>>", "\nUser:"]
_LONG_TOKENS, _SHORT_TOKENS = 512, 256
_CUT = "cut"
_LOOK = 4  # pairs, after which there may be a verdict: to look takes a moment
_MOST_SILENT = 20  # pairs in a row that say nothing, after which a test is given up


class Heard(NamedTuple):
    """The response to a request.

    Attributes:
        answer: A whole chat completion; None if there is none.
        trace: Its tokens, as far as the engine tells them.
        error: Why there is no answer.
    """

    answer: dict[str, Any] | None
    trace: Trace
    error: str = ""


Ask = Callable[[bool, dict[str, Any]], Awaitable[Heard]]
"""Sends a request, with drafts or without, and never fails."""


@dataclass(frozen=True, kw_only=True)
class QualifyTerms:
    """The terms of a qualification.

    Attributes:
        alpha: Chance, over all tests and looks together, of a wrong verdict on one of the pairs' tests.
        tolerance: By how much more often answers may be bad with drafts for a test to be passed.
        corruption: Share of changed identifiers from which on an engine fails; found with an error of 0.001.
        most: Pairs of one test after which it stays undecided; of identifiers, eight times as many.
        seed: Selects the prompts.
        concurrency: Requests in flight where identifiers are copied, since such faults need a batch.
        context: Most tokens of a prompt and its answer together.
    """

    alpha: float = 0.01
    tolerance: float = 0.05
    corruption: float = 0.003
    most: int = 480
    seed: int = 0
    concurrency: int = 8
    context: int = 8192

    def to_dict(self) -> dict[str, float]:
        """Returns what the verdicts' figures mean."""
        return {"alpha": self.alpha, "tolerance": self.tolerance, "corruption": self.corruption}


@dataclass(frozen=True, slots=True)
class PairTest:
    """A kind of request that is sent with drafts and without.

    Attributes:
        cells: Its prompts and shapes, in turn.
        more: Members that are added to each request.
        at_once: Requests that are sent together.
        is_long: Half of the prompts stand behind a long text, and answers may be long.
    """

    cells: tuple[ProbeCell, ...]
    more: Mapping[str, Any] = field(default_factory=dict)
    at_once: int = 1
    is_long: bool = False

    def body(self, number: int, terms: QualifyTerms) -> dict[str, Any]:
        """Returns a request; no two are alike, since equal ones have equal answers at a temperature of 0."""
        cell = self.cells[number % len(self.cells)]
        body = cell.body(number)
        filler = terms.context // len(_FILLER) if self.is_long and number % 4 > 1 else 0  # a quarter of all tokens
        text = f"Ticket {terms.seed}-{number}.\n{_FILLER * filler}{cell.text}"
        limit = min(_LONG_TOKENS if self.is_long else _SHORT_TOKENS, terms.context // 4)
        asked = {"messages": [{"role": "user", "content": text}], "max_tokens": limit, "temperature": 0}
        return {**body, **asked, **self.more}


def _cells(prompts: str, shapes: str, streams: tuple[bool, ...] = (True, False)) -> tuple[ProbeCell, ...]:
    return tuple(
        ProbeCell(prompt, PROMPTS[prompt], shape, None, stream)
        for prompt, shape, stream in itertools.product(prompts.split(), shapes.split(), streams)
    )


_PROSE = tuple(
    ProbeCell("prose", "Tell me at length about old maps, and list ten of them.", "text", None, stream)
    for stream in (True, False)
)
_CALLS = _cells("weather chinese quoting two", "auto required strict")
_JSON = _cells("weather two", "json")
PAIR_TESTS: Mapping[str, PairTest] = {
    "tools": PairTest(_CALLS),
    "json": PairTest(_JSON),
    "stop": PairTest((*_cells("weather two", "auto required"), *_JSON), {"stop": _STOPS}),
    "logprobs": PairTest((*_PROSE, *_cells("weather two", "required")), {"logprobs": True, "top_logprobs": _TOP}),
    "long": PairTest((*_cells("quoting two", "auto required"), *_PROSE), is_long=True),
    "two": PairTest((*_cells("weather two", "required"), *_PROSE, *_JSON), at_once=2),
}


async def qualify(ask: Ask, terms: QualifyTerms, advance: Callable[[str], None]) -> dict[str, EngineVerdict]:
    """Returns the verdict of each test.

    Args:
        ask: Asks either engine.
        terms: On which they are compared.
        advance: Called with the test's name after each trial.
    """
    verdicts = {}
    for name, test in PAIR_TESTS.items():
        verdicts[name] = await _of_pairs(ask, test, terms, partial(advance, name))
    return {**verdicts, "echo": await _of_identifiers(ask, terms, partial(advance, "echo"))}


async def _of_pairs(ask: Ask, test: PairTest, terms: QualifyTerms, advance: Callable[[], None]) -> EngineVerdict:
    counts, why, silent, unknown = PairCounts(), "", 0, ""
    alpha = terms.alpha / len(PAIR_TESTS)
    numbers = iter(range(terms.most))
    verdict = judge(counts, alpha, terms.tolerance)
    while verdict.finding == "not yet" and silent < _MOST_SILENT:
        bodies = [test.body(number, terms) for number in itertools.islice(numbers, test.at_once)]
        if not bodies:
            break
        with_drafts = [{**body, **_IDS} for body in bodies]
        without = [{**body, **_WITH_TOPS} for body in bodies]
        ours, standard = await asyncio.gather(_all(ask, True, with_drafts), _all(ask, False, without))
        for body, own, right in zip(bodies, ours, standard, strict=True):
            pair = compare(body, own, right)
            silent = silent + 1 if pair.counts is None or pair.counts.both_bad else 0
            if pair.counts is None:
                unknown = pair.why
            elif pair.counts.both_bad:  # nobody knows what drafts do
                unknown = "the standard engine answered wrong, too"
            else:
                counts = PairCounts.total((counts, pair.counts))
                why = why or (pair.why if pair.counts.candidate_bad else "")
            advance()
        if counts.pairs % _LOOK == 0 or counts.candidate_bad:
            verdict = judge(counts, alpha, terms.tolerance)
    verdict = judge(counts, alpha, terms.tolerance)
    finding = _FINDINGS[verdict.finding]
    at_least, at_most = verdict.at_least, verdict.at_most
    return EngineVerdict(
        finding=finding, n=counts.pairs, bad=counts.candidate_bad, at_least=at_least, at_most=at_most,
        why=(why or (unknown if finding == "undecided" else ""))[:1000],
    )  # fmt: skip


async def _all(ask: Ask, drafts: bool, bodies: list[dict[str, Any]]) -> list[Heard]:
    return await asyncio.gather(*(ask(drafts, body) for body in bodies))


class Pair(NamedTuple):
    """The judgement on a pair of answers.

    Attributes:
        counts: Which of the two was bad; None if nobody can tell.
        why: The answer with drafts is bad, or nobody can tell.
    """

    counts: PairCounts | None
    why: str = ""


def compare(body: Mapping[str, Any], ours: Heard, standard: Heard) -> Pair:
    """Judges an answer with drafts beside one to the same request without: token by token, and as clients read it.

    Args:
        body: The request.
        ours: With drafts.
        standard: Without.
    """
    if ours.answer is None and standard.answer is None:
        return Pair(None, ours.error)
    if ours.answer is None or standard.answer is None:
        return _pair(standard.answer is not None, ours.answer is not None, ours.error)
    own, right = guarded(body, ours.answer), guarded(body, standard.answer)
    cut = _CUT in (own["outcome"], right["outcome"])
    departs = departure(ours.trace, standard.trace, may_end=cut or "stop" in body)
    if departs.kind == "wrong":
        return _pair(True, False, departs.why)
    if body.get("logprobs") and not ours.trace.logprobs:
        return Pair(None, "the engine tells no log-probabilities")
    if body.get("logprobs") and (number := wrong_number(ours.trace, standard.trace)):
        return _pair(True, False, number)
    if not cut and (body.get("tools") or body.get("response_format")):
        return _as_read(own, right, departs)
    return _as_text(ours, standard, departs)


def _pair(served_good: bool, candidate_good: bool, why: str = "") -> Pair:
    return Pair(PairCounts.of(served_good=served_good, candidate_good=candidate_good), why)


def _as_read(own: Mapping[str, Any], right: Mapping[str, Any], departs: Departure) -> Pair:
    """Judges two whole answers with calls or JSON by what the guard says of them."""
    vanished = right["calls"] and not own["calls"]
    good = not vanished and (own["outcome"] == CLEAN or own["outcome"] == right["outcome"])
    if departs.kind == "tie" and not good:
        return Pair(None, f"{departs.why}, and what followed was worse")  # by the model's doing, or by the drafts'
    why = "no call, where the standard engine makes one" if vanished else str(own.get("detail") or own["outcome"])
    return _pair(right["outcome"] == CLEAN, good, why)


def _as_text(ours: Heard, standard: Heard, departs: Departure) -> Pair:
    """Judges two answers of which only the tokens can be right or wrong."""
    if departs.kind == "unknown" and _text(ours) != _text(standard):
        return Pair(None, departs.why)
    return _pair(True, True)


def _text(heard: Heard) -> Any:
    choices = (heard.answer or {}).get("choices") or [{}]
    message = choices[0].get("message") or {}
    calls = [call.get("function") for call in message.get("tool_calls") or ()]
    return message.get("content") or "", calls


@dataclass
class _Copies:
    """The identifiers that both engines copied.

    Attributes:
        test: Of the identifiers that drafts alone changed.
        why: The first of them.
        lost: Prompts of which it can't be told.
    """

    test: SequentialTest
    why: str = ""
    lost: int = 0

    def add(self, prompt: EchoPrompt, ours: Heard, standard: Heard) -> None:
        """Counts the identifiers of one prompt."""
        own, right = (heard.answer and prompt.copied(heard.answer) for heard in (ours, standard))
        if not own or not right:
            self.lost += 1
            return
        for name, value, other in zip(prompt.names, own, right, strict=True):
            if value == other:  # be it right or not, drafts have changed nothing
                self.test.add(1, 0)
            elif other == name and value is not None:
                self.test.add(1, 1)
                self.why = self.why or f"{value!r} in place of {name!r}"


async def _of_identifiers(ask: Ask, terms: QualifyTerms, advance: Callable[[], None]) -> EngineVerdict:
    copies = _Copies(SequentialTest(corrupt_rate=terms.corruption))
    numbers = iter(range(terms.most))

    async def worker() -> None:
        for number in numbers:
            if copies.test.finding != "undecided" or copies.lost >= _MOST_SILENT > copies.test.trials:
                return
            prompt = EchoPrompt.of(number, terms.seed)
            body = {**prompt.body(stream=bool(number % 2)), "temperature": 0}
            copies.add(prompt, *await asyncio.gather(ask(True, body), ask(False, body)))
            advance()

    async with asyncio.TaskGroup() as group:
        for _ in range(terms.concurrency):
            group.create_task(worker())
    test = copies.test
    bad, good = test.corrupted, test.trials - test.corrupted
    return EngineVerdict(
        finding=_FINDINGS.get(test.finding, "undecided"), n=test.trials, bad=bad,
        at_least=lower_bound(bad, good, test.error / 2), at_most=upper_bound(bad, good, test.error / 2),
        why=(copies.why or ("" if test.trials else "no answer has a call that copies anything"))[:1000],
    )  # fmt: skip
