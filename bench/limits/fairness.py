"""What is asked of fair shares, and whether it holds: one row a figure, of shares the worst of several seeds."""

from __future__ import annotations

import math
from collections.abc import Iterable, Iterator, Sequence
from dataclasses import replace
from typing import Any

from bench.limits.shared_pool import Demand, Outcome, Setting, play

_SEEDS = range(8)
_SEEDS_OF_WAITS = range(32)  # of eight, p95 waits in a pool that is not full differ by two times
_GATEWAYS = (1, 4)
_HEAVY = Demand("heavy", clients=320)
_SLOTS = 32
# The pool is full of either tenant's requests alone, and the heavy one has ten times as many.
_SHARES = {
    "equal tenants": (_HEAVY, Demand("light", clients=32)),
    "a light tenant that barely fills its share": (_HEAVY, Demand("light", clients=22)),
    "answers three times as long": (_HEAVY, Demand("light", clients=32, longer=3.0)),
    "twice the weight": (Demand("heavy", clients=480), Demand("light", clients=48, weight=2.0)),
}
_FAR_FROM_SHARE = {1: 0.10, 4: 0.15}
_MOST_WAIT = 1.5
_LEAST_WORK = 0.98
_P95_OF_CHANCE = math.log(20)  # of a wait for what comes at random, in means


def rows() -> list[dict[str, Any]]:
    """Returns every figure with its target."""
    return [row for gateways in _GATEWAYS for row in (*_shares(gateways), *_waits(gateways), *_work(gateways))]


def _shares(gateways: int) -> Iterator[dict[str, Any]]:
    """Yields how far what the light tenant was served is from its weight."""
    for name, demands in _SHARES.items():
        weights = {demand.tenant: demand.weight for demand in demands}
        worst = 0.0
        for outcome in _played(Setting(demands, _SLOTS, gateways)):
            per_weight = {tenant: outcome.total(tenant) / weight for tenant, weight in weights.items()}
            fair = sum(map(outcome.total, weights)) / sum(weights.values())
            worst = max(worst, *(abs(each / fair - 1) for each in per_weight.values()))
        yield _row(name, gateways, "served tokens off the weights", worst, "<=", _FAR_FROM_SHARE[gateways])


def _waits(gateways: int) -> Iterator[dict[str, Any]]:
    """Yields the light tenant's wait for a slot beside what it could be without the heavy one.

    A tenant that is alone in the whole pool has twice its share of slots, and does not wait as long as it uses no more
    than that: no rule gives it that in a full pool, where a slot comes free when an answer ends. So near its share, the
    measure is a pool of its own with as many slots; and far below, the next slot that its gateway replica has free.
    """
    near, far = Demand("light", per_s=5.0), Demand("light", per_s=1.0)
    alone = _p95_s(_played(Setting((near,), _SLOTS // 2, gateways), _SEEDS_OF_WAITS))
    shared = _p95_s(_played(Setting((_HEAVY, near), _SLOTS, gateways), _SEEDS_OF_WAITS))
    yield _row(
        "a tenant near its share", gateways, "p95 wait beside a pool of its own", shared / alone, "<=", _MOST_WAIT
    )
    outcomes = _played(Setting((_HEAVY, far), _SLOTS, gateways), _SEEDS_OF_WAITS)
    interval_s = gateways * sum(60.0 / outcome.answers for outcome in outcomes) / len(outcomes)
    wait = _p95_s(outcomes) / (_P95_OF_CHANCE * interval_s)
    yield _row("a tenant far below its share", gateways, "p95 wait beside the next free slot", wait, "<=", _MOST_WAIT)


def _work(gateways: int) -> Iterator[dict[str, Any]]:
    """Yields the time for which slots are in use, beside a queue in the order of arrival."""
    setting = Setting(_SHARES["equal tenants"], _SLOTS, gateways)
    fair, fifo = (sum(each.busy_s for each in _played(replace(setting, fair=fair))) for fair in (True, False))
    yield _row(
        "equal tenants", gateways, "slots in use beside first come, first served", fair / fifo, ">=", _LEAST_WORK
    )


def _played(setting: Setting, seeds: Iterable[int] = _SEEDS) -> list[Outcome]:
    return [play(replace(setting, seed=seed)) for seed in seeds]


def _p95_s(outcomes: Sequence[Outcome]) -> float:
    return sum(outcome.p95_wait_s("light") for outcome in outcomes) / len(outcomes)


def _row(setting: str, gateways: int, figure: str, measured: float, side: str, target: float) -> dict[str, Any]:
    holds = measured <= target if side == "<=" else measured >= target
    return {
        "setting": setting,
        "gateways": gateways,
        "figure": figure,
        "measured": round(measured, 3),
        "target": f"{side} {target:g}",
        "holds": holds,
    }
