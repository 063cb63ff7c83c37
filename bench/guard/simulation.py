"""Simulates the statistical test behind quarantine: error rate and time to decision, without engines or HTTP."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

from policies import Cell
from serve.guard.core import Outcome
from serve.quarantine.detector import Quarantine, QuarantineSettings, Tally, Terms
from serve.quarantine.record import Change

FAST = Cell("m", "speculative", True, "tools_auto")
SAFE = Cell("m", "standard", False, "tools_auto")
SAMPLES = 0.02  # share of requests that the reference gets, besides the reruns
BATCH = 10  # answers that are reported together


@dataclass(frozen=True)
class Simulated:
    """Many runs of one case.

    Attributes:
        case: What the pools are like.
        answers: Of the pool in question, at most, in each run.
        changed: Runs in which its status changed.
        median_answers, most_answers: Of the pool until then; None if it never changed.
    """

    case: str
    runs: int
    answers: int
    changed: int
    median_answers: int | None
    most_answers: int | None


@dataclass(frozen=True)
class _Case:
    """Rates of bad answers, and what is known at the start.

    Attributes:
        known: Answers of the reference that were counted before.
        out: Whether the pool is in quarantine.
    """

    name: str
    bad: float
    reference: float = 0.0
    known: int = 0
    out: bool = False


_CASES = (
    _Case("no worse: both 5 % bad", 0.05, 0.05),
    _Case("no worse: both 20 % bad", 0.20, 0.20),
    _Case("50 % bad, reference 0 and unknown", 0.50),
    _Case("10 % bad, reference 0 and unknown", 0.10),
    _Case("50 % bad, reference 0, known", 0.50, known=500),
    _Case("10 % bad, reference 0, known", 0.10, known=500),
    _Case("3 % bad, reference 0, known", 0.03, known=500),
    _Case("25 % bad, reference 5 %, known", 0.25, 0.05, known=500),
    _Case("out, then cured", 0.0, known=500, out=True),
    _Case("out, still 6 points worse", 0.06, known=500, out=True),
)


def measure(runs: int) -> list[Simulated]:
    """Every case; `runs` of each, with fixed seeds."""
    answers = QuarantineSettings().window
    simulated = []
    for case in _CASES:
        counts = (_run(Random(seed), case, answers) for seed in range(runs))
        found = sorted(count for count in counts if count is not None)
        median = found[len(found) // 2] if found else None
        simulated.append(Simulated(case.name, runs, answers, len(found), median, found[-1] if found else None))
    return simulated


def _run(rng: Random, case: _Case, answers: int) -> int | None:
    """Answers of the pool until its status changes; None if it does not."""
    detector = Quarantine(Terms(QuarantineSettings(), {"m": "standard"}))
    _absorb(detector, [(SAFE, rng.random() < case.reference) for _ in range(case.known)])
    if case.out:
        _absorb(detector, [(FAST, True)] * 100)
    for count in range(BATCH, answers + 1, BATCH):
        if _absorb(detector, list(_answers(rng, case.bad, case.reference))):
            return count
    return None


def _answers(rng: Random, bad: float, reference: float) -> Iterator[tuple[Cell, bool]]:
    for _ in range(BATCH):
        broken = rng.random() < bad
        yield FAST, broken
        if broken or rng.random() < SAMPLES:  # its rerun, or a sample
            yield SAFE, rng.random() < reference


def _absorb(detector: Quarantine, answers: list[tuple[Cell, bool]]) -> list[Change]:
    tallies = [Tally(cell, Outcome.TRUNCATED if broken else Outcome.CLEAN, 1, False) for cell, broken in answers]
    return detector.absorb(tallies, 0.0)
