"""What the load ranking claims, held against the rows of a run. Pure."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, NamedTuple

STATIC = ("speculative_first", "standard_only")
_LOW = ("2 % by chance",)
_TIMES = (("ttft_ms", "p50"), ("ttft_ms", "p99"), ("tpot_ms", "p50"), ("tpot_ms", "p99"))

Row = Mapping[str, Any]
Arms = Mapping[str, Row]  # the rows of one load on one cluster, by arm


class Claim(NamedTuple):
    """One claim and its worst case.

    Attributes:
        text: The claim.
        bound: What it says.
        worst: What was measured where it is worst.
        where: Cluster and load of that.
        met: Whether it holds everywhere.
    """

    text: str
    bound: float
    worst: float
    where: str
    met: bool


def claims(rows: Iterable[Row]) -> list[Claim]:
    """Returns every claim that the rows say something about."""
    played: dict[str, dict[str, Row]] = {}
    for row in rows:
        played.setdefault(f"{row['cluster']}, {row['load']}", {})[row["arm"]] = row
    found = [
        _at_least(0.95, "of the oracle's throughput", played, lambda arms: arms["specgate"]["ratio_to_oracle"]),
        _at_least(0.98, "of the better static arm's", played, _beside_static),
        _at_least(0.95, "of the oracle's, from a minute after a change on", played, _after_change),
        _at_least(0.90, "of the oracle's, by two gateways", played, _two_gateways),
        _at_most(1.02, "times today's latency at low load", played, _low_load),
        _at_most(0, "requests where the policy forbids them", played, _forbidden),
    ]
    return [claim for claim in found if claim is not None]


_Measure = Callable[[Arms], float | None]


def _at_least(bound: float, text: str, played: Mapping[str, Arms], measure: _Measure) -> Claim | None:
    found = _measured(played, measure)
    worst, where = min(found, default=(None, ""))
    return None if worst is None else Claim(f"at least {bound:g} {text}", bound, worst, where, worst >= bound)


def _at_most(bound: float, text: str, played: Mapping[str, Arms], measure: _Measure) -> Claim | None:
    found = _measured(played, measure)
    worst, where = max(found, default=(None, ""))
    return None if worst is None else Claim(f"at most {bound:g} {text}", bound, worst, where, worst <= bound)


def _measured(played: Mapping[str, Arms], measure: _Measure) -> Sequence[tuple[float, str]]:
    found = ((measure(arms), where) for where, arms in played.items())
    return [(round(value, 4), where) for value, where in found if value is not None]


def _beside_static(arms: Arms) -> float | None:
    best = max(arms[arm]["tokens_per_s"] for arm in STATIC)
    return float(arms["specgate"]["tokens_per_s"] / best) if best else None  # a short run may complete nothing


def _after_change(arms: Arms) -> float | None:
    found: float | None = arms["specgate"].get("after_change")
    return found


def _two_gateways(arms: Arms) -> float | None:
    found: float = arms["two_gateways"]["ratio_to_oracle"]
    return found


def _low_load(arms: Arms) -> float | None:
    ours, today = arms["specgate"], arms["speculative_first"]
    if ours["load"] not in _LOW:
        return None
    return max(float(ours[kind][cut] / today[kind][cut]) for kind, cut in _TIMES)


def _forbidden(arms: Arms) -> float | None:
    return float(sum(row["forbidden"] for row in arms.values()))
