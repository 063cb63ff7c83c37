"""Simulates quarantine: false alarms, time to find a worse pool, time to return. `python -m bench.quarantine`.

Two pools answer requests; each pair of answers, one by each pool, is drawn from given rates. Everything after that is
the gateway's own code: chance puts one pool first, `finding_of` says what came of it, and the detector decides, looking
100 times per window or, for a fault, 100 times in twice the time that it may take.

Wanted: false quarantines at most alpha, and a pool that is worse found, on average, within twice the requests that an
optimal sequential test of the same trials needs. That is Wald's test: it knows both rates and how often the pools fail
alike, and stakes on nothing else. Each trial gives it, on average, I = the information in a finding about who answered
first (in nats), so no test that quarantines a sound pool with probability at most alpha finds this one after less than
ln(1 / alpha) / I requests on average.
"""

import argparse
import json
import math
from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass
from functools import partial
from itertools import product
from typing import Any

import numpy as np
import numpy.typing as npt
from rich.console import Console
from rich.table import Table

from policies import Candidate, Cell, Trial
from policies.quarantine import PROBED_FIRST
from serve.config.quarantine import QuarantineConfig
from serve.guard.attempt_result import TrialFinding, finding_of
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.quarantine.detector import Detector, DetectorTerms, TrialCount, sample_share

SEED = 28
LOOKS = 100
VISIBLE = 0.05  # alpha at which false alarms are counted: at 0.001, nobody would see that it is twice too high

CELL = Cell("m", "speculative", True, "tools_auto")
POOL, REFERENCE = Candidate("speculative", False, True), Candidate("standard", False, False)
GOOD = Verdict(Outcome.CLEAN)
BAD = Verdict(Outcome.TRUNCATED, (Defect(Outcome.TRUNCATED, Severity.HARD, "cut"),))

Pairs = dict[tuple[bool, bool], float]  # chance that the pool's, and the reference's, answer to a request is broken


@dataclass(frozen=True)
class Case:
    """Two pools.

    Attributes:
        reference: The reference's rate of broken answers.
        worse_by: How much higher the pool's is.
        alike: Share of the reference's failures that the pool has too, for the same request.
        client: What one client with 90 % of the traffic sends: `none` (there is none), `clean`, `unsatisfiable`
            (broken by both pools) or `coin` (each answer is broken by a coin of its own). The rates above are then
            those of the other clients.
        reference_share: As configured.
    """

    reference: float
    worse_by: float
    alike: float
    client: str
    reference_share: float

    @property
    def pairs(self) -> Pairs:
        own = self.reference + self.worse_by
        both = max(self.alike * self.reference, own + self.reference - 1.0)
        rates = {
            (True, True): both,
            (True, False): own - both,
            (False, True): self.reference - both,
            (False, False): 1.0 - own - self.reference + both,
        }
        others = _CLIENTS[self.client]
        weight = 0.9 if others else 0.0
        return {pair: (1.0 - weight) * rate + weight * others.get(pair, 0.0) for pair, rate in rates.items()}


_COIN: Pairs = {(own, reference): 0.25 for own, reference in product((True, False), repeat=2)}
_CLIENTS: Mapping[str, Pairs] = {
    "none": {}, "clean": {(False, False): 1.0}, "unsatisfiable": {(True, True): 1.0}, "coin": _COIN,
}  # fmt: skip


def kinds(pairs: Pairs, own_share: float, paired: bool = True) -> dict[str, float]:
    """Returns the chance of each kind of trial.

    Args:
        pairs: Of answers.
        own_share: Chance that the pool answers first.
        paired: Broken answers run again on the other pool.
    """
    chances: dict[str, float] = {}
    for first, name, share in ((POOL, "own", own_share), (REFERENCE, "reference", 1.0 - own_share)):
        trial = Trial(CELL, POOL, REFERENCE, own_share, first, paired)
        for broken, chance in pairs.items():
            verdicts = [BAD if each else GOOD for each in (broken if first is POOL else broken[::-1])]
            ran = verdicts if paired and not verdicts[0].good else verdicts[:1]
            finding = finding_of(trial, [first, trial.other], ran)
            kind = f"{name}_{finding}"
            chances[kind] = chances.get(kind, 0.0) + share * max(chance, 0.0)
    return chances


def optimum(chances: Mapping[str, float], own_share: float, alpha: float) -> float:
    """Returns the least requests after which any valid test finds, on average, a pool with these kinds of trials."""
    information = 0.0
    for finding in TrialFinding:
        own, reference = (chances.get(f"{side}_{finding}", 0.0) for side in ("own", "reference"))
        for chance, share in ((own, own_share), (reference, 1.0 - own_share)):
            if chance > 0:
                information += chance * math.log(chance / share / (own + reference))
    return math.log(1.0 / alpha) / information if information > 1e-15 else math.inf


def batches(chances: Mapping[str, float], requests: int, looks: int, random: np.random.Generator) -> npt.NDArray[Any]:
    """Returns how many trials of each kind come between two looks."""
    rates = np.asarray(list(chances.values()))
    return random.multinomial(max(1, requests // looks), rates / rates.sum(), size=looks)


def looks_until_change(
    detector: Detector, chances: Mapping[str, float], numbers: npt.NDArray[Any], own_share: float, suspected: bool
) -> int | None:
    """Returns after how many looks the pool's status changes; None if it does not."""
    for look, row in enumerate(numbers, 1):
        trials = [
            TrialCount(CELL, own_share, kind, int(n), suspected) for kind, n in zip(chances, row, strict=True) if n
        ]
        if detector.absorb((), 0.0, trials):
            return look
    return None


def make(**settings: Any) -> Detector:
    """Returns a detector that compares the pool."""
    return Detector(DetectorTerms(QuarantineConfig(**settings), {"m": REFERENCE.pool}))


@dataclass(frozen=True)
class FalseAlarms:
    """Runs of one window with a pool that is as good as the reference.

    Attributes:
        window: Requests in each run.
        quarantined: Runs in which the pool was quarantined.
    """

    reference_share: float
    rate: float
    alike: float
    client: str
    alpha: float
    window: int
    runs: int
    quarantined: int


def false_alarms(case: Case, runs: int) -> FalseAlarms:
    """Simulates a pool that is no worse."""
    settings = QuarantineConfig(alpha=VISIBLE, reference_share=case.reference_share)
    own_share = sample_share(settings)
    window = round(settings.window / case.reference_share)
    chances = kinds(case.pairs, own_share)
    found = 0
    for seed in range(runs):
        numbers = batches(chances, window, LOOKS, np.random.default_rng([SEED, seed]))
        detector = make(alpha=VISIBLE, reference_share=case.reference_share)
        found += looks_until_change(detector, chances, numbers, own_share, suspected=False) is not None
    return FalseAlarms(
        case.reference_share, case.reference, case.alike, case.client, VISIBLE, window, runs, found
    )  # fmt: skip


@dataclass(frozen=True)
class Detection:
    """Runs with a pool that is worse.

    Attributes:
        rates: Of broken answers: the reference's and the pool's.
        optimum: Requests that an optimal test needs on average.
        mean, median: Requests until quarantine.
        ratio: `mean` by `optimum`.
        missed: Runs without a quarantine in as many requests as `Case` may take; they count as that many.
    """

    reference_share: float
    rates: str
    alike: float
    client: str
    suspected: bool
    runs: int
    optimum: int
    mean: int
    median: int
    ratio: float
    missed: int


def detection(case: Case, runs: int, suspected: bool = False) -> Detection:
    """Simulates a pool that is worse from the first request on."""
    settings = QuarantineConfig(reference_share=case.reference_share)
    own_share = sample_share(settings)
    chances = kinds(case.pairs, own_share)
    least = optimum(chances, own_share, settings.alpha)
    most = round(6 * least)
    looks = 3 * LOOKS
    step = max(1, most // looks)
    needed, missed = [], 0
    for seed in range(runs):
        numbers = batches(chances, most, looks, np.random.default_rng([SEED, seed]))
        look = looks_until_change(make(reference_share=case.reference_share), chances, numbers, own_share, suspected)
        missed += look is None
        needed.append((look or looks) * step)
    mean = float(np.mean(needed))
    rates = f"{case.reference:.0%} / {case.reference + case.worse_by:.0%}"
    return Detection(
        case.reference_share, rates, case.alike, case.client, suspected, runs,
        round(least), round(mean), round(float(np.median(needed))), round(mean / least, 2), missed,
    )  # fmt: skip


@dataclass(frozen=True)
class Return:
    """Runs with a pool in quarantine.

    Attributes:
        rates: Of broken answers: the reference's and the pool's.
        returned: Runs in which it returned within a window.
        trials: Until then, median; half of them are probes.
    """

    rates: str
    runs: int
    returned: int
    trials: int | None


def returns(reference: float, worse_by: float, runs: int) -> Return:
    """Simulates a pool in quarantine."""
    window = round(QuarantineConfig().window / PROBED_FIRST)
    chances = kinds(Case(reference, worse_by, 0.0, "none", 0.02).pairs, PROBED_FIRST, paired=False)
    needed = []
    for seed in range(runs):
        detector = make()
        detector.absorb((), 0.0, [TrialCount(CELL, 0.98, "own_bad", 980, False)])
        detector.absorb((), 0.0, [TrialCount(CELL, 0.98, "reference_good", 20, False)])
        numbers = batches(chances, window, 8 * LOOKS, np.random.default_rng([SEED, seed]))
        look = looks_until_change(detector, chances, numbers, PROBED_FIRST, suspected=False)
        if look is not None:
            needed.append(look * window // (8 * LOOKS))
    rates = f"{reference:.0%} / {reference + worse_by:.0%}"
    return Return(rates, runs, len(needed), round(float(np.median(needed))) if needed else None)


def measure(quick: bool, shares: Sequence[float]) -> Iterator[tuple[str, Iterator[Any]]]:
    """Yields the tables, row by row."""
    runs = 20 if quick else 100
    sound = [
        Case(rate, 0.0, alike, client, share)
        for share, rate, alike, client in product(shares, (0.01, 0.05, 0.2, 0.5), (0.0, 0.5, 1.0), _CLIENTS)
    ]
    yield "false quarantines of a pool that is no worse", map(partial(false_alarms, runs=runs // 2), sound)
    worse = [
        Case(rate, 0.05, alike, "none", share)
        for share, rate, alike in product(shares, (0.01, 0.05, 0.2, 0.5), (0.0, 0.5, 1.0))
    ]
    worse += [
        Case(0.05, 0.5, 0.5, client, share) for share, client in product(shares, ("clean", "unsatisfiable", "coin"))
    ]
    large = [Case(0.0, by, 0.0, "none", share) for share, by in product(shares, (0.1, 0.5))]
    yield "requests until a worse pool is quarantined", map(partial(detection, runs=runs), worse + large)
    yield (
        "the same, if an advisory warns of it",
        (detection(case, runs, suspected=True) for case in [*worse[:1], *large]),
    )
    yield (
        "trials until a pool returns",
        (returns(rate, by, runs) for rate, by in ((0.0, 0.0), (0.05, 0.0), (0.2, 0.0), (0.0, 0.06), (0.2, 0.06))),
    )


def main() -> None:
    """Simulates and prints."""
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--quick", action="store_true", help="one reference share, fewer runs")
    options.add_argument("--share", action="append", type=float, help="a reference share; all three if not given")
    options.add_argument("--json", action="store_true", help="print JSON")
    given = options.parse_args()
    if not given.json:
        print(f"seed {SEED}; run n draws from numpy.random.default_rng([{SEED}, n])")
    tables = {}
    for title, rows in measure(given.quick, given.share or ((0.02,) if given.quick else (0.005, 0.02, 0.1))):
        tables[title] = [asdict(row) for row in rows]
        if not given.json:
            _print(title, tables[title])
    sound, worse = list(tables.values())[:2]
    total = {
        "false_quarantines": sum(row["quarantined"] for row in sound),
        "runs": sum(row["runs"] for row in sound),
        "alpha": VISIBLE,
        "highest_ratio": max(row["ratio"] for row in worse),
    }
    if given.json:
        print(json.dumps({"seed": SEED, **tables, "total": total}, indent=1))
    else:
        print(total)


def _print(title: str, rows: Iterable[Mapping[str, Any]]) -> None:
    table = Table(title=title, title_justify="left")
    rows = list(rows)
    for name in rows[0]:
        table.add_column(name, justify="right")
    for row in rows:
        table.add_row(*map(str, row.values()))
    Console(width=160).print(table)


if __name__ == "__main__":
    main()
