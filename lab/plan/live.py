"""Advice from what drafters accept in production: the draft length that serves each class of requests best at its load.

What an engine would accept at another length is computed: each drafted token is taken to be accepted as often as those
before it. Step times are the published ones, as much slower or faster as the gateway has seen the pool's to be.
"""

from collections.abc import Iterable, Mapping, Sequence
from itertools import groupby
from math import sqrt
from typing import Annotated, Any

import msgspec

from policies.step_times import PUBLISHED, StepTimes
from serve.admin.history import HALF_HOUR_S

LEAST_ANSWERS = 50
# Later answers count more: what is known is never surer than this many make it, however many there were.
_MOST_ANSWERS = 144
_QUANTILE = 1.96
_LEAST_GAIN = 0.03  # nobody changes an engine for less
_HALVINGS = 40
_LOADS = (1, 4, 16, 64, 256)  # sequences in the batch, at which an adaptive length is looked at

_Amount = Annotated[float, msgspec.Meta(gt=0)]


class Drafts(msgspec.Struct, frozen=True):
    """What one pool's drafter does for one class of requests, as a gateway has learned it.

    Attributes:
        answers: That told.
        idle_s: Seconds since the last of them; None if none came to this gateway.
        length: Tokens per step, as far as answers are few what was expected.
        drafts: Draft length; 0 if the pool does not say.
        per_engine: Requests on one engine, now.
        factor: Time of the engine's steps, of the published ones.
        shown: Tokens per step in answers alone.
        weight: Answers that are as sure as what is known, which fades where they are few.
    """

    model: str
    pool: str
    request_class: str
    answers: Annotated[int, msgspec.Meta(ge=0)]
    length: Annotated[float, msgspec.Meta(ge=1)]
    drafts: Annotated[int, msgspec.Meta(ge=0)]
    per_engine: float
    factor: _Amount
    idle_s: float | None = 0.0  # older gateways say neither this nor what follows
    shown: Annotated[float, msgspec.Meta(ge=1)] | None = None
    weight: Annotated[float, msgspec.Meta(ge=0)] | None = None

    @property
    def counts(self) -> bool:
        """True if enough answers told, and of today's traffic, as the dashboard has it."""
        return self.answers >= LEAST_ANSWERS and self.idle_s is not None and self.idle_s <= HALF_HOUR_S

    @property
    def tokens(self) -> float:
        """Tokens per step, what was expected left out."""
        return self.length if self.shown is None else self.shown

    @property
    def batch(self) -> float:
        """Sequences in the batch of an engine that has anything to do."""
        return max(1.0, self.per_engine)

    @property
    def bounds(self) -> tuple[float, float, float]:
        """Tokens per step: at least, as known, and at most, with 95 % confidence, however answers differ."""
        accepted = min(self.tokens - 1.0, self.drafts)
        answers = max(1, min(self.answers if self.weight is None else self.weight, _MOST_ANSWERS))
        wide = max(_QUANTILE * sqrt(accepted * (self.drafts - accepted) / answers), self.drafts / answers)
        return 1.0 + max(0.0, accepted - wide), 1.0 + accepted, 1.0 + min(float(self.drafts), accepted + wide)


def advised(rows: Iterable[Drafts], times: StepTimes = PUBLISHED) -> list[dict[str, Any]]:
    """Returns the advice for each pool's classes, and for each pool as a whole.

    Args:
        rows: Of `GET /admin/v1/drafts`.
        times: Of the engines' steps.
    """
    found = []
    for (model, pool), group in groupby(sorted(rows, key=_pool), key=_pool):
        each = list(group)
        parts = [each, *([one] for one in each)] if len(each) > 1 else [each]
        for part in parts:
            name = part[0].request_class if part is not each or len(each) == 1 else None
            found.append({"model": model, "pool": pool, "request_class": name, **_advice(part, times)})
    return found


def _pool(row: Drafts) -> tuple[str, str]:
    return row.model, row.pool


def _advice(rows: Sequence[Drafts], times: StepTimes) -> dict[str, Any]:
    """Returns the advice on a pool's requests of some classes."""
    now, answers, batch = rows[0].drafts, sum(row.answers for row in rows), rows[0].batch
    shown = {"drafts": now, "answers": answers, "batch": round(batch, 1)}
    told = [row for row in rows if row.counts]
    if not now or not told:
        if not now:
            why = "the pool's draft length is unknown"
        elif all(row.answers < LEAST_ANSWERS for row in rows):
            why = f"fewer than {LEAST_ANSWERS} answers told of drafts"
        else:
            why = "none told of drafts for half an hour"
        return {**shown, "advice": "not enough evidence", "why": why}
    best = _best(told, batch, times)
    low, gain, high = _gains(told, best, batch, times)
    by_load = {load: _best(told, load, times) for load in _LOADS}
    if best == now or gain < _LEAST_GAIN:
        advice, why = "keep", f"no other length gains {_LEAST_GAIN:.0%}"
    elif low > 0:
        advice, why = (f"draft {best}" if best else "do not draft"), f"{gain:+.0%} tokens per second"
    else:
        advice, why = "not enough evidence", f"{best} drafts may gain {high:+.0%} or lose {-low:.0%}"
    return {
        **shown,
        "length": round(sum(row.tokens * row.answers for row in told) / sum(row.answers for row in told), 3),
        "advice": advice,
        "why": why,
        "best": best,
        "gain": round(gain, 4),
        "at_least": round(low, 4),
        "at_most": round(high, 4),
        "by_load": by_load,
    }


def _best(rows: Sequence[Drafts], batch: float, times: StepTimes) -> int:
    lengths = sorted({*times.drafts, rows[0].drafts})
    return max(lengths, key=lambda drafts: _rate(rows, drafts, batch, times, 1))


def _gains(rows: Sequence[Drafts], drafts: int, batch: float, times: StepTimes) -> tuple[float, float, float]:
    """Returns what another draft length gains: at least, as known, and at most."""
    found = [
        _rate(rows, drafts, batch, times, bound) / _rate(rows, rows[0].drafts, batch, times, bound) - 1
        for bound in range(3)
    ]
    return min(found), found[1], max(found)


def _rate(rows: Sequence[Drafts], drafts: int, batch: float, times: StepTimes, bound: int) -> float:
    """Returns tokens per second of a sequence; the classes weigh as much as they have answers."""
    tokens = sum(row.answers * _length_at(row.bounds[bound], row.drafts, drafts) for row in rows)
    return tokens / sum(row.answers for row in rows) / (times.at(batch, drafts) * rows[0].factor)


def _length_at(length: float, drafts: int, others: int) -> float:
    """Returns the tokens per step at another draft length, if all drafted tokens are accepted equally often."""
    low, high = 0.0, 1.0
    for _ in range(_HALVINGS):
        middle = (low + high) / 2
        low, high = (middle, high) if _length(middle, drafts) < length else (low, middle)
    return _length(low, others)


def _length(accepted: float, drafts: int) -> float:
    return sum(accepted**place for place in range(drafts + 1))


def read_drafts(rows: Iterable[Mapping[str, Any]]) -> list[Drafts]:
    """Returns rows of the admin API.

    Raises:
        ValueError: They have another form.
    """
    return msgspec.convert(list(rows), list[Drafts])
