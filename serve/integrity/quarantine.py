"""Which pools are fit for which requests, from the outcomes of their answers: clean-rates, quarantine and return."""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, Literal, NamedTuple

from serve.integrity.bounds import SUSPECTED, UNSUSPECTED, Prior, lower_bound, upper_bound
from serve.integrity.outcome import Outcome, Verdict

Status = Literal["open", "quarantined"]
By = Literal["test", "operator"]
VERSION = 1


class Key(NamedTuple):
    """What a clean-rate is kept of."""

    model: str
    pool: str
    request_class: str


@dataclass(frozen=True, kw_only=True)
class QuarantineSettings:
    """How pools are judged.

    Attributes:
        alpha: Chance, for each window of answers, that a pool no worse than the reference is quarantined.
        margin: By how much a pool's rate of bad answers must certainly exceed the reference's.
        window: Answers after which counting begins anew, so that an old record can't hide a new fault.
        probe_share: Share of requests that a quarantined pool still gets, protected by reruns.
        return_alpha: Chance that a pool returns although it is worse than the reference by `tolerance`.
        tolerance: How much worse than the reference a pool may be to return.
    """

    alpha: float = 0.001
    margin: float = 0.0
    window: int = 2000
    probe_share: float = 0.02
    return_alpha: float = 0.05
    tolerance: float = 0.05


@dataclass(frozen=True)
class Change:
    """A pool's status changed.

    Attributes:
        why: One sentence with the figures.
    """

    key: Key
    status: Status
    by: By
    at_s: float
    why: str


@dataclass
class Record:
    """One key's outcomes and status.

    Attributes:
        outcomes: In the present window.
        before: Bad and good answers of the window before, if there was one.
    """

    outcomes: Counter[str] = field(default_factory=Counter)
    before: tuple[int, int] | None = None
    status: Status = "open"
    by: By = "test"
    since_s: float = 0.0
    why: str = ""

    @property
    def good(self) -> int:
        return self.outcomes[Outcome.CLEAN]

    @property
    def bad(self) -> int:
        return self.outcomes.total() - self.good

    def begin_window(self) -> None:
        self.before = (self.bad, self.good)
        self.outcomes = Counter()

    def change(self, change: Change) -> None:
        """Take on a status; what was counted under the old one says nothing about the new."""
        self.status, self.by, self.since_s, self.why = change.status, change.by, change.at_s, change.why
        self.outcomes, self.before = Counter(), None


class Quarantine:
    """The judge of all pools. Pure: time and chance come as arguments.

    A pool is compared with its model's reference pool in the same request class. Its own bound and the reference's are
    each wrong with at most half of alpha; the reference's half is shared by its present window and the one before.

    Args:
        settings: How to judge.
        references: Reference (standard) pool by model.
        suspected: Whether an advisory warns of a pool for a class.
    """

    def __init__(
        self,
        settings: QuarantineSettings,
        references: Mapping[str, str],
        suspected: Callable[[Key], bool] = lambda key: False,
    ) -> None:
        self._settings, self._references, self._suspected = settings, references, suspected
        self._records: dict[Key, Record] = {}
        self._pending: Counter[tuple[Key, str]] = Counter()

    def record(self, key: Key, verdict: Verdict, now_s: float) -> Change | None:
        """Count a judged answer; the change of status that it causes, if any."""
        if not verdict.counts:
            return None
        self._pending[key, str(verdict.outcome)] += 1
        return self._count(key, str(verdict.outcome), 1, now_s)

    def allows(self, key: Key, chance: float) -> bool:
        """Whether a request may go to the pool; to a quarantined one only as a probe.

        Args:
            key: Of the pool and the request's class.
            chance: A random number in 0..1.
        """
        return self.status(key) == "open" or chance < self._settings.probe_share

    def status(self, key: Key) -> Status:
        record = self._records.get(key)
        return record.status if record else "open"

    def set_status(self, key: Key, status: Status, why: str, now_s: float) -> Change:
        """An operator's word. What an operator quarantined only an operator lifts."""
        change = Change(key, status, "operator", now_s, why)
        self._records.setdefault(key, Record()).change(change)
        return change

    def view(self) -> list[dict[str, Any]]:
        """Every record with its bounds, for operators."""
        return [self._shown(key, record) for key, record in sorted(self._records.items())]

    # Sharing between gateway replicas

    def take_pending(self) -> list[list[Any]]:
        """What was counted here since the last call, to be sent to the shared judge."""
        pending, self._pending = self._pending, Counter()
        return [[*key, outcome, count] for (key, outcome), count in pending.items()]

    def absorb(self, pending: Iterable[Iterable[Any]], now_s: float) -> list[Change]:
        """Count what a replica sent; the changes of status that it causes."""
        changes = []
        for model, pool, request_class, outcome, count in pending:
            if change := self._count(Key(model, pool, request_class), outcome, count, now_s):
                changes.append(change)
        return changes

    def as_dict(self) -> dict[str, Any]:
        """The whole state as plain values, fit for JSON."""
        entries = [
            {
                "key": list(key), "outcomes": dict(record.outcomes), "before": record.before, "status": record.status,
                "by": record.by, "since_s": record.since_s, "why": record.why,
            }
            for key, record in self._records.items()
        ]  # fmt: skip
        return {"version": VERSION, "entries": entries}

    def restore(self, state: Mapping[str, Any]) -> None:
        """Take on a state from `as_dict`; what was counted here and not yet sent is counted on top.

        Raises:
            ValueError: If the state is of another version.
        """
        if state.get("version") != VERSION:
            raise ValueError(f"a quarantine state of version {state.get('version')!r}; this is version {VERSION}")
        self._records = {}
        for entry in state["entries"]:
            before = tuple(entry["before"]) if entry["before"] else None
            rest = {name: entry[name] for name in ("status", "by", "since_s", "why")}
            self._records[Key(*entry["key"])] = Record(Counter(entry["outcomes"]), before, **rest)
        for (key, outcome), count in self._pending.items():
            self._records.setdefault(key, Record()).outcomes[outcome] += count

    # The test

    def _count(self, key: Key, outcome: str, count: int, now_s: float) -> Change | None:
        record = self._records.setdefault(key, Record())
        record.outcomes[outcome] += count
        change = self._judge(key, record, now_s)
        if change is not None:
            record.change(change)
        elif record.outcomes.total() >= self._settings.window:
            record.begin_window()
        return change

    def _judge(self, key: Key, record: Record, now_s: float) -> Change | None:
        reference = self._reference(key)
        if reference is None or (record.status == "quarantined" and record.by == "operator"):
            return None
        judge = self._worse if record.status == "open" else self._recovered
        why = judge(key, record, reference)
        status: Status = "quarantined" if record.status == "open" else "open"
        return Change(key, status, "test", now_s, why) if why else None

    def _reference(self, key: Key) -> Record | None:
        """The record to compare with; None for the reference pool itself and where there is none."""
        pool = self._references.get(key.model)
        return None if pool in (None, key.pool) else self._records.get(key._replace(pool=str(pool)))

    def _worse(self, key: Key, record: Record, reference: Record) -> str | None:
        low = lower_bound(record.bad, record.good, self._settings.alpha / 2, self._prior(key))
        if low <= self._settings.margin:
            return None
        windows = [(reference.bad, reference.good), *([reference.before] if reference.before else [])]
        high = min(upper_bound(bad, good, self._settings.alpha / 4) for bad, good in windows)
        if low <= high + self._settings.margin:
            return None
        seen = f"{record.bad} of {record.bad + record.good} answers bad, so at least {low:.1%}"
        return f"{seen}; the reference pool at most {high:.1%}"

    def _recovered(self, key: Key, record: Record, reference: Record) -> str | None:
        high = upper_bound(record.bad, record.good, self._settings.return_alpha / 2)
        bad, good = reference.before or (reference.bad, reference.good)
        low = lower_bound(bad, good, self._settings.return_alpha / 2)
        if high >= low + self._settings.tolerance:
            return None
        return f"{record.bad} of {record.bad + record.good} probes bad, so at most {high:.1%}"

    def _prior(self, key: Key) -> Prior:
        return SUSPECTED if self._suspected(key) else UNSUSPECTED

    def _shown(self, key: Key, record: Record) -> dict[str, Any]:
        half = self._settings.alpha / 2
        return {
            **key._asdict(),
            "status": record.status,
            "by": record.by,
            "since_s": record.since_s,
            "why": record.why,
            "answers": record.outcomes.total(),
            "bad": record.bad,
            "bad_rate_at_least": lower_bound(record.bad, record.good, half, self._prior(key)),
            "bad_rate_at_most": upper_bound(record.bad, record.good, half),
            "outcomes": dict(record.outcomes),
            "evidence": "measured" if record.outcomes else "prior",
            "suspected": self._suspected(key),
        }
