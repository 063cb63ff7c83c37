"""Pairs of answers to the same request, one that was served and one of a candidate pool; and the verdict on them. Pure.

A pair's difference is 1 if only the candidate's answer was bad, -1 if only the other was, 0 if neither was. Pairs of
which both were bad say nothing of the candidate, and are left out.

Whoever stakes a fixed share of a capital on the mean difference being above a bound can't gain in expectation while it
is not, so that the capital reaches 1/alpha with probability alpha at most, at all looks together (Ville's inequality;
Waudby-Smith and Ramdas, "Estimating means of bounded random variables by betting", JRSS B 86(1), 2024). With three
outcomes the capital depends on their numbers alone, so that replicas add theirs.
"""

from __future__ import annotations

import math
from collections import Counter, defaultdict
from collections.abc import Iterable, Mapping
from functools import lru_cache
from typing import Any, Literal, NamedTuple

Finding = Literal["promote", "reject", "not yet"]

_STAKES = (0.02, 0.05, 0.1, 0.2, 0.35, 0.5, 0.7, 0.9)  # shares of the most that may be staked, equally weighted
_HALVINGS = 40
_MOST_BUSY = 0.1  # share of the copies: what a candidate is too busy for it has chosen itself


class PairCounts(NamedTuple):
    """Numbers of pairs by which of the two answers was bad."""

    none_bad: int = 0
    candidate_bad: int = 0
    served_bad: int = 0
    both_bad: int = 0

    @classmethod
    def of(cls, *, served_good: bool, candidate_good: bool) -> PairCounts:
        number = 2 * (not served_good) + (not candidate_good)
        return cls(*(int(place == number) for place in range(4)))

    @classmethod
    def total(cls, counts: Iterable[PairCounts]) -> PairCounts:
        return cls(*map(sum, zip(cls(), *counts, strict=True)))

    @property
    def pairs(self) -> int:
        """The number of those that say something of the candidate."""
        return self.none_bad + self.candidate_bad + self.served_bad


class PairVerdict(NamedTuple):
    """The verdict on a candidate.

    Attributes:
        finding: `reject`: it is certainly worse. `promote`: it is certainly not worse by the tolerance.
        difference: The candidate's rate of bad answers less that of what was served; None without pairs.
        at_least, at_most: Bounds on it that hold at all times at once, with probability `1 - alpha`.
    """

    finding: Finding
    difference: float | None
    at_least: float
    at_most: float


@lru_cache(maxsize=1024)  # the dashboard asks every second, and most pairs are old
def judge(counts: PairCounts, alpha: float, tolerance: float) -> PairVerdict:
    """Returns the verdict on a candidate.

    Args:
        counts: Its pairs.
        alpha: Chance, over all looks together, of rejecting one that is no worse, and of promoting one that is worse by
            the tolerance.
        tolerance: By how much more often the answers of a candidate may be bad.
    """
    ups, downs = counts.candidate_bad, counts.served_bad
    finding: Finding = "not yet"
    if _capital(ups, downs, counts.none_bad, 0.0) >= 1 / alpha:
        finding = "reject"
    elif _capital(downs, ups, counts.none_bad, -tolerance) >= 1 / alpha:
        finding = "promote"
    return PairVerdict(
        finding,
        (ups - downs) / counts.pairs if counts.pairs else None,
        _lower(ups, downs, counts.none_bad, alpha / 2),
        -_lower(downs, ups, counts.none_bad, alpha / 2),
    )


def _capital(ups: int, downs: int, alike: int, bound: float) -> float:
    """Returns what a capital of 1 has become that was staked on the mean difference being above a bound."""
    most = 1 / (1 + bound)
    logs = [
        ups * math.log1p(stake * most * (1 - bound))
        + alike * math.log1p(-stake * most * bound)
        + downs * math.log1p(-stake * most * (1 + bound))
        for stake in _STAKES
    ]
    return sum(math.exp(min(log, 600.0)) for log in logs) / len(_STAKES)


def _lower(ups: int, downs: int, alike: int, alpha: float) -> float:
    """Returns a bound that the mean difference is ever below with probability at most `alpha`."""
    low, high = -1 + 1e-9, 1 - 1e-9
    if _capital(ups, downs, alike, low) < 1 / alpha:
        return -1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        if _capital(ups, downs, alike, middle) >= 1 / alpha:
            low = middle
        else:
            high = middle
    return low


def listing(rows: Iterable[Mapping[str, Any]]) -> list[dict[str, Any]]:
    """Returns a row for each candidate, over all classes, and one for each class. Rows are those of `Shadows.view` of
    every replica.
    """
    groups: defaultdict[tuple[str, str, str], list[Mapping[str, Any]]] = defaultdict(list)
    for row in rows:
        for name in {"", row["request_class"]}:  # one without pairs has no class
            groups[row["model"], row["pool"], name].append(row)
    return [_row(*key, group) for key, group in sorted(groups.items())]


def _row(model: str, pool: str, request_class: str, group: list[Mapping[str, Any]]) -> dict[str, Any]:
    counts = PairCounts.total(PairCounts(*(row[name] for name in PairCounts._fields)) for row in group)
    outcomes = sum((Counter(row["outcomes"]) for row in group), Counter[str]())
    lost = {name: sum(row.get(name, 0) for row in group) for name in ("skipped", "busy", "faults")}
    verdict = judge(counts, group[0]["alpha"], group[0]["tolerance"])
    is_busy = lost["busy"] > _MOST_BUSY * (sum(counts) + lost["busy"])
    finding = "not yet" if is_busy and verdict.finding == "promote" else verdict.finding
    return {
        "model": model,
        "pool": pool,
        "request_class": request_class or None,
        "verdict": finding,
        "why": _why(counts, **lost, is_busy=is_busy) if finding == "not yet" else "",
        "pairs": counts.pairs,
        **counts._asdict(),
        **lost,
        "difference": verdict.difference,
        "at_least": verdict.at_least,
        "at_most": verdict.at_most,
        "alpha": group[0]["alpha"],
        "tolerance": group[0]["tolerance"],
        "outcomes": dict(outcomes.most_common()),
        "served_mean_s": _mean(group, "served_s", sum(counts)),
        "candidate_mean_s": _mean(group, "candidate_s", sum(counts)),
    }


def _why(counts: PairCounts, skipped: int, busy: int, faults: int, *, is_busy: bool) -> str:
    """Returns why there is no verdict; nothing if more pairs are all that is needed."""
    if is_busy:
        return f"the candidate was too busy for {busy} of {sum(counts) + busy} copies"
    if counts.pairs:
        return ""
    if counts.both_bad:
        return "both answers were bad each time, which says nothing of the candidate"
    if faults:
        return "the gateway's own code failed at the comparisons; see its log"
    return "all copies were skipped because of the load" if skipped else "no answer to a copy has been judged"


def _mean(group: list[Mapping[str, Any]], name: str, answers: int) -> float | None:
    total: float = sum(row[name] for row in group)
    return total / answers if answers else None
