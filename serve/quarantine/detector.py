"""The detector: decides by trials which pools are fit for which requests. Pure.

It keeps the trials of each cell against the reference, quarantines cells that are certainly worse, and brings them back
once they are certainly not much worse any more.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Collection, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal, NamedTuple

import msgspec
from msgspec import Meta, Struct, convert, to_builtins

from policies import Cell, QuarantineReason
from policies.classes import copying_classes
from policies.quarantine import PROBED_FIRST
from serve.config.quarantine import QuarantineConfig
from serve.guard.core.verdict import Outcome
from serve.quarantine.evidence import RETURNING, SUSPECTED, UNSUSPECTED, Count, TrialCounts, bets, capital
from serve.quarantine.sequential import Finding, SequentialTest, is_rarer, lower_bound, upper_bound

BLOCKS = 8  # that a window's trials are cut into: bets begin with each
RECENT = 2000  # answers after which their counting restarts, so that rates are those of today

VERSION = 6  # of the state
_WITHOUT_ECHOES = 5  # else the same
CLEAN = 0.02  # share of bad answers up to which a cell is trusted to send calls that are not whole
_CLEAN_ALPHA = 0.05
MOST_CHANGES = 50  # that are remembered

ECHO = "echo"  # in place of a request class, where rows and changes are about identifiers that a pool copied

Status = Literal["open", "quarantined"]
By = Literal["test", "operator", "echo"]
Share = Annotated[float, Meta(ge=0, le=1)]
UnixTime = Annotated[float, Meta(ge=0, lt=1e12)]
EchoKey = tuple[str, str, bool]  # model, pool, with speculation


class Change(Struct, frozen=True, forbid_unknown_fields=True):
    """A change of a cell's status.

    Attributes:
        held: Only an operator can change it again.
        answers: Number of trials that decided the test; 0 if an operator decided.
        why: One sentence with the figures, or the operator's reason.
        operator: Id of the operator's key, if one decided.
    """

    cell: Cell
    status: Status
    by: By
    at_s: UnixTime
    why: str
    held: bool = False
    answers: Count = 0
    operator: str = ""


class CellRecord(Struct, forbid_unknown_fields=True):
    """One cell's outcomes and status.

    Attributes:
        outcomes: Of its latest first answers, for operators; nothing is decided by them.
        own_share: Chance with which the cell answered first in these trials.
        suspected: An advisory warned of it at some time of the window.
        held, decided_by: `Change.held` and `Change.answers` of the last change.
    """

    cell: Cell
    outcomes: dict[str, Count] = {}
    trials: Annotated[list[TrialCounts], Meta(max_length=BLOCKS)] = []
    own_share: Share = 0.0
    suspected: bool = False
    status: Status = "open"
    held: bool = False
    by: By = "test"
    since_s: UnixTime = 0.0
    why: str = ""
    decided_by: Count = 0

    @property
    def answers(self) -> int:
        return sum(self.outcomes.values())

    @property
    def good(self) -> int:
        return self.outcomes.get(Outcome.CLEAN, 0)

    @property
    def bad(self) -> int:
        return self.answers - self.good

    def count(self, outcome: str, answers: int) -> None:
        """Counts first answers, from the start again once there are many."""
        if self.answers >= RECENT:
            self.outcomes = {}
        self.outcomes[outcome] = self.outcomes.get(outcome, 0) + answers

    @property
    def reason(self) -> QuarantineReason:
        """The reason for quarantine, as decisions report it."""
        return QuarantineReason(self.why, "operator" if self.by == "operator" else f"measured n={self.decided_by}")

    def prepare(self, own_share: float, suspected: bool) -> None:
        """Begins a window for trials that can't be judged together with those before: the bets are others."""
        if own_share != self.own_share or (suspected and not self.suspected):
            self.trials = []
        self.own_share = own_share
        self.suspected = suspected or (self.suspected and bool(self.trials))

    def add(self, trials: TrialCounts) -> None:
        """Counts trials in the current block."""
        if not self.trials:
            self.trials.append(TrialCounts())
        self.trials[-1] += trials

    def cut(self, window: int) -> None:
        """Begins a block, or a window, once the current one has as many of the reference's answers as it may have."""
        if not self.trials or self.trials[-1].reference < window / BLOCKS:
            return
        if len(self.trials) < BLOCKS:
            self.trials.append(TrialCounts())
        else:
            self.trials = []

    def apply(self, change: Change) -> None:
        """Sets the new status and restarts counting: outcomes under the old status say nothing about the new one."""
        self.status = change.status
        self.held = change.held
        self.by = change.by
        self.since_s = change.at_s
        self.why = change.why
        self.decided_by = change.answers
        self.outcomes = {}
        self.trials = []


class EchoRecord(Struct, forbid_unknown_fields=True):
    """The echo canary's identifiers that one pool has copied, right and wrong.

    Attributes:
        build: Of the engine that copies now; another one is counted from the start.
        trials, corrupted: Identifiers since the last finding, or of this build.
        status: `quarantined` from the finding that it is corrupt on, until one that it is sound.
        since_s: Unix time of the last change of status.
    """

    key: EchoKey
    build: str = ""
    trials: Count = 0
    corrupted: Count = 0
    judged: bool = False
    status: Status = "open"
    since_s: UnixTime = 0.0
    why: str = ""
    held: ClassVar[bool] = False
    suspected: ClassVar[bool] = False
    by: ClassVar[By] = "echo"

    def add(self, build: str, trials: int, corrupted: int) -> None:
        if build != self.build:
            self.build, self.trials, self.corrupted, self.judged = build, 0, 0, False
        self.trials += trials
        self.corrupted += corrupted

    @property
    def finding(self) -> Finding:
        """The conclusion that is certain so far."""
        return SequentialTest(trials=self.trials, corrupted=self.corrupted).finding

    def conclude(self, now_s: float) -> bool:
        """Takes the finding, and begins a new test; returns whether the status has changed."""
        status: Status = "quarantined" if self.finding == "corrupt" else "open"
        changed = status != self.status
        self.why = f"{self.corrupted} of {self.trials} identifiers came out changed"
        self.status, self.since_s = status, now_s if changed else self.since_s
        self.judged, self.trials, self.corrupted = True, 0, 0
        return changed


class DetectorRecords(Struct):
    """The whole state of a detector, as replicas, the shared detector and its file exchange it."""

    version: int
    entries: list[CellRecord]
    changes: list[Change]
    echoes: list[EchoRecord] = []


class KeptRecords(DetectorRecords):
    """The state in a file, with the version of the shared state and the number of each replica's last report."""

    revision: Count = 1
    reports: dict[str, Count] = {}


def parsed(data: bytes) -> Mapping[str, Any]:
    """Returns the state in a file's content: whatever is there, only numbers that can be true come out of it.

    Raises:
        ValueError: It is none.
    """
    try:
        kept: Mapping[str, Any] = msgspec.to_builtins(msgspec.json.decode(data, type=KeptRecords))
    except (msgspec.MsgspecError, RecursionError, UnicodeDecodeError) as error:
        raise ValueError(f"no state of quarantine: {error}") from None
    return kept


Action = Literal["quarantine", "lift", "pin"]
_ACTIONS: Mapping[Action, tuple[Status, bool]] = {
    "quarantine": ("quarantined", True),
    "lift": ("open", False),
    "pin": ("open", True),
}


@dataclass(frozen=True)
class DetectorTerms:
    """The detector's settings and references.

    Attributes:
        references: By model, the pool that the others are compared with when it serves without speculation.
    """

    settings: QuarantineConfig = field(default_factory=QuarantineConfig)
    references: Mapping[str, str] = field(default_factory=dict)


class OutcomeCount(NamedTuple):
    """A number of first answers of one cell with the same outcome."""

    cell: Cell
    outcome: str
    answers: int


class TrialCount(NamedTuple):
    """A number of trials of one cell with the same finding.

    Attributes:
        own_share: Chance with which the cell was to answer first.
        kind: One of `TrialCounts`.
    """

    cell: Cell
    own_share: float
    kind: str
    trials: int
    suspected: bool


class EchoCount(NamedTuple):
    """The echo canary's identifiers that one pool has copied, right and wrong.

    Attributes:
        build: Names the engine, its version, drafter and settings.
    """

    model: str
    pool: str
    speculative: bool
    build: str
    identifiers: int
    corrupted: int


DetectorState = Mapping[str, Any]  # `Detector.as_dict`


class Counts(NamedTuple):
    """Outcomes, trials and copies that one replica counted, and the detector's terms as it knows them."""

    counts: tuple[OutcomeCount, ...]
    trials: tuple[TrialCount, ...]
    terms: DetectorTerms
    echoes: tuple[EchoCount, ...] = ()


class Order(NamedTuple):
    """An operator's order about one cell, its reason, and the id of the operator's key."""

    cell: Cell
    action: Action
    why: str
    operator: str = ""


class Detector:
    """Detects bad cells by a sequential test. Pure: time is passed in.

    A cell is compared with its model's reference pool in the same request class. The bets on its being worse make
    1 / alpha of a capital with probability at most alpha if it is not; so do those on its return, with `return_alpha`.
    """

    def __init__(self, terms: DetectorTerms) -> None:
        self.terms = terms
        self._records: dict[Cell, CellRecord] = {}
        self._echoes: dict[EchoKey, EchoRecord] = {}
        self._changes: deque[Change] = deque(maxlen=MOST_CHANGES)

    def absorb(
        self,
        counts: Iterable[OutcomeCount],
        now_s: float,
        trials: Iterable[TrialCount] = (),
        echoes: Iterable[EchoCount] = (),
    ) -> list[Change]:
        """Counts answers and trials, tests the cells that were tried, and returns the changes of status.

        A batch is counted as a whole before any test: otherwise the order within a batch would pass for the order of
        the answers. Trials that were drawn before the last change of status, or of the settings, say nothing any more.
        Counts, trials and echoes are those since the last call; `now_s` is in Unix time.
        """
        for cell, outcome, answers in counts:
            self._record(cell).count(outcome, answers)
        tried: dict[Cell, CellRecord] = {}
        for cell, own_share, kind, number, suspected in trials:
            record = self._record(cell)
            if own_share == self._own_share(record):
                record.prepare(own_share, suspected)
                record.add(TrialCounts(**{kind: number}))
                tried[cell] = record
        changes = [change for cell, record in tried.items() if (change := self._test(cell, record, now_s))]
        for change in changes:
            self._apply(change)
        changes += self._copied(echoes, now_s)
        for record in tried.values():
            record.cut(self.terms.settings.window)
        return changes

    def order(self, cell: Cell, action: Action, why: str, now_s: float, operator: str = "") -> Change:
        """Carries out an operator's order.

        Args:
            cell: The cell to change.
            action: `quarantine`: out until an operator says otherwise. `pin`: in, likewise. `lift`: in, and tested.
            why: The operator's reason.
            now_s: Unix time.
            operator: Id of the operator's key.
        """
        status, held = _ACTIONS[action]
        change = Change(cell, status, "operator", now_s, why, held, operator=operator)
        self._apply(change)
        return change

    def changes(self) -> list[Change]:
        """Returns the last changes, newest first."""
        return list(self._changes)[::-1]

    def quarantined(self) -> dict[Cell, QuarantineReason]:
        out = {cell: record.reason for cell, record in self._records.items() if record.status == "quarantined"}
        for key, echo in self._echoes.items():
            if echo.status == "quarantined" and self._is_compared(cell := Cell(*key, ECHO)):
                reason = QuarantineReason(f"{echo.why} (echo canary)", ECHO)
                own = (cell._replace(request_class=name) for name in copying_classes())
                out |= {each: reason for each in own if each not in out and not self._is_pinned(each)}
        return out

    def _is_pinned(self, cell: Cell) -> bool:
        record = self._records.get(cell)
        return record is not None and record.held and record.status == "open"

    def echo_build(self, key: EchoKey) -> tuple[str, bool]:
        """Returns the build of a pool that was asked to copy last, and whether there was a finding on it."""
        echo = self._echoes.get(key)
        return ("", False) if echo is None else (echo.build, echo.judged)

    def _copied(self, echoes: Iterable[EchoCount], now_s: float) -> list[Change]:
        """Counts what was copied, and returns the changes of status.

        That a pool is corrupt is concluded once its reference certainly is not: some models can't copy.
        """
        for model, pool, speculative, build, identifiers, corrupted in echoes:
            key = (model, pool, speculative)
            self._echoes.setdefault(key, EchoRecord(key)).add(build, identifiers, corrupted)
        changes = []
        for key, echo in self._echoes.items():
            cell, finding = Cell(*key, ECHO), echo.finding
            if finding == "undecided" or (
                finding == "corrupt" and self._is_compared(cell) and not self._does_better(key)
            ):
                continue
            if echo.conclude(now_s):
                changes.append(Change(cell, echo.status, "echo", now_s, echo.why))
        self._changes.extend(changes)
        return changes

    def _does_better(self, key: EchoKey) -> bool:
        """Returns True if the reference of a pool is known to copy, or copies better for certain."""
        model, *_ = key
        reference, own = self._echoes.get((model, self.terms.references[model], False)), self._echoes[key]
        if reference is None or reference.status == "quarantined" or reference.finding == "corrupt":
            return False
        return reference.judged or is_rarer(
            reference.corrupted, reference.trials, own.corrupted / own.trials, self.terms.settings.alpha
        )

    def clean(self, before: Collection[Cell] = ()) -> frozenset[Cell]:
        """Returns the cells in service of whose answers few are bad for certain. Those of the last time, `before`, stay
        as long as few of the latest are: counting begins again at times.
        """
        out = self.quarantined()
        return frozenset(
            cell
            for cell, record in self._records.items()
            if cell not in out and (_is_clean(record) or (cell in before and _looks_clean(record)))
        )

    def why(self, cell: Cell) -> str:
        """Returns the reason for the cell's current status; empty if it never changed."""
        return self._records[cell].why if cell in self._records else ""

    def view(self) -> list[dict[str, Any]]:
        """Returns every record with its bounds, for operators."""
        return [
            *(self._row(cell, record) for cell, record in sorted(self._records.items())),
            *(self._echo_row(key, record) for key, record in sorted(self._echoes.items())),
        ]

    def as_dict(self) -> dict[str, Any]:
        """Returns the whole state as plain values, fit for JSON."""
        echoes = list(self._echoes.values())
        records = DetectorRecords(VERSION, list(self._records.values()), list(self._changes), echoes)
        state: dict[str, Any] = to_builtins(records)
        return state

    def restore(self, state: Mapping[str, Any]) -> None:
        """Replaces the state by one from `as_dict`.

        Raises:
            ValueError: The state is of another version.
        """
        if state.get("version") not in (_WITHOUT_ECHOES, VERSION):
            raise ValueError(f"the quarantine state has version {state.get('version')!r}; expected version {VERSION}")
        records = convert(state, DetectorRecords)
        self._records = {record.cell: record for record in records.entries}
        self._echoes = {echo.key: echo for echo in records.echoes}
        self._changes = deque(records.changes, MOST_CHANGES)

    def _record(self, cell: Cell) -> CellRecord:
        return self._records.setdefault(cell, CellRecord(cell))

    def _apply(self, change: Change) -> None:
        self._record(change.cell).apply(change)
        self._changes.append(change)

    def _own_share(self, record: CellRecord) -> float:
        """Returns the chance with which the trials are drawn by which the record's status may change."""
        return sample_share(self.terms.settings) if record.status == "open" else PROBED_FIRST

    def _test(self, cell: Cell, record: CellRecord, now_s: float) -> Change | None:
        if record.held or not self._is_compared(cell):
            return None
        settings = self.terms.settings
        status: Status
        if record.status == "open":
            status, alpha = "quarantined", settings.alpha
            stakes = SUSPECTED if record.suspected else UNSUSPECTED
            odds = capital(record.trials, BLOCKS, bets("worse", settings.margin, record.own_share, stakes))
        else:
            status, alpha = "open", settings.return_alpha
            odds = capital(record.trials, BLOCKS, bets("no_worse", settings.tolerance, record.own_share, RETURNING))
        if odds < 1.0 / alpha:
            return None
        return Change(cell, status, "test", now_s, _why(record, odds), answers=sum(map(sum, record.trials)))

    def _is_compared(self, cell: Cell) -> bool:
        """False for the reference itself, and where there is none."""
        pool = self.terms.references.get(cell.model)
        return pool is not None and (cell.pool, cell.speculative) != (pool, False)

    def _echo_row(self, key: EchoKey, echo: EchoRecord) -> dict[str, Any]:
        good, bad = echo.trials - echo.corrupted, echo.corrupted
        trials = TrialCounts(own_good=good, own_bad=bad)
        return self._shown(Cell(*key, ECHO), echo, good, bad, {"copied": good, "changed": bad}, trials)

    def _row(self, cell: Cell, record: CellRecord) -> dict[str, Any]:
        trials = sum(record.trials, TrialCounts())
        return self._shown(cell, record, record.good, record.bad, record.outcomes, trials)

    def _shown(
        self,
        cell: Cell,
        record: CellRecord | EchoRecord,
        good: int,
        bad: int,
        outcomes: Mapping[str, int],
        trials: TrialCounts,
    ) -> dict[str, Any]:
        alpha = self.terms.settings.alpha / 2
        return {
            **cell._asdict(),
            "status": record.status,
            "held": record.held,
            "by": record.by,
            "since_s": record.since_s,
            "why": record.why,
            "answers": good + bad,
            "bad": bad,
            "clean_rate": good / (good + bad) if good + bad else None,
            "bad_rate_at_least": lower_bound(bad, good, alpha),
            "bad_rate_at_most": upper_bound(bad, good, alpha),
            "outcomes": dict(outcomes),
            "suspected": record.suspected,
            "reference": not self._is_compared(cell) and cell.model in self.terms.references,
            "trials": {"own": trials.own, "reference": trials.reference},
        }


def _looks_clean(record: CellRecord) -> bool:
    return record.bad <= CLEAN * record.answers


def _is_clean(record: CellRecord) -> bool:
    return _looks_clean(record) and upper_bound(record.bad, record.good, _CLEAN_ALPHA) <= CLEAN


def sample_share(settings: QuarantineConfig) -> float:
    """Returns the chance that a cell in service, not the reference, answers a trial first."""
    return 1.0 - settings.reference_share


def _why(record: CellRecord, odds: float) -> str:
    trials = sum(record.trials, TrialCounts())
    chance = f"otherwise the chance of that would be at most {1.0 / odds:.1g}"
    own = f"{trials.own_failures} of {trials.own} answers bad"
    return f"{own}, and {trials.reference_failures} of {trials.reference} of the reference pool's; {chance}"
