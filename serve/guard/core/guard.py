"""The guard: an engine's chunks in, chunks that may go to the client out, over one or several attempts."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from enum import StrEnum
from typing import Any

from serve.config.guard import GuardConfig
from serve.errors import IntegrityError
from serve.guard.core.choice import ChoiceGuard
from serve.guard.core.chunk import ARGUMENTS, Piece, choices_of, lone_piece
from serve.guard.core.client_view import Delta, Outflow
from serve.guard.core.expectation import Expectation
from serve.guard.core.usage import Usage
from serve.guard.core.verdict import Outcome, Severity, Verdict, Violation, gravest

Chunk = dict[str, Any]
_ENVELOPE = ("id", "created", "model", "object", "system_fingerprint")


class State(StrEnum):
    """Where an answer is.

    `OPEN`: feed it. `RERUN`: this attempt is lost; `restart`, or `give_up` if there is no other pool. `FAILED`: so was
    the last; `give_up`. `DONE`: all has gone out.
    """

    OPEN = "open"
    RERUN = "rerun"
    FAILED = "failed"
    DONE = "done"


class Guard:
    """Guards one answer.

    Feed every chunk of the engine's stream, then `finish`; send what comes back. When `state` becomes `RERUN`, stop
    reading, `restart`, and feed the chunks of the next pool's answer: the client sees one stream. `observe` mode
    returns every chunk as it is.

    Args:
        settings: How to behave.
        request: The body of the chat request, as the client sent it.
        grammar: Format of the model's calls, if known; otherwise the markup itself tells.
        whole: Whether nothing is sent before the answer is complete, so that a rerun replaces all of it.

    Attributes:
        state: Where the answer is.
        verdicts: One for each attempt that is over.
    """

    def __init__(
        self, settings: GuardConfig, request: Mapping[str, Any], *, grammar: str | None = None, whole: bool = False
    ) -> None:
        self.state = State.OPEN
        self.verdicts: list[Verdict] = []
        self._settings, self._whole = settings, whole
        self._expected = Expectation(request, grammar)
        self._wants_usage = whole or self._expected.wants_usage  # a whole answer always carries it
        self._choices: dict[int, ChoiceGuard] = {}
        self._outflows: dict[int, Outflow] = {}
        self._envelope: Chunk = {}
        self._usage = Usage()
        self._upstream: list[Violation] = []
        self._pool = ""

    @property
    def response_id(self) -> str:
        """The id of the answer; empty while none is known."""
        return str(self._envelope.get("id") or "")

    @property
    def awaits_usage(self) -> bool:
        """Whether a lost attempt is over but for its usage, so that reading on costs nothing and counts it."""
        over = self.state in (State.RERUN, State.FAILED) and not self._unfinished() and not self._upstream
        return over and self._wants_usage and not self._usage.reported

    @property
    def outcome(self) -> Outcome:
        """What the whole answer was to the client."""
        if self.state is not State.DONE:
            return Outcome.FAILED
        last = self.verdicts[-1]
        return Outcome.RERUN if len(self.verdicts) > 1 and last.good else last.outcome

    @property
    def report(self) -> dict[str, Any]:
        """What the client is told: reruns and why, and what is still wrong. Empty for an answer that was clean."""
        told: dict[str, Any] = {}
        if reruns := (self.verdicts if self.state is State.OPEN else self.verdicts[:-1]):
            told = {"rerun": self._pool, "reasons": [str(verdict.outcome) for verdict in reruns]}
            if self._usage.unreported and self._wants_usage:
                told["attempts_without_usage"] = self._usage.unreported
        wrong = [each for each in self._violations() if each.severity is not Severity.NOTE]
        if wrong:
            told["unclean"] = sorted({str(each.outcome) for each in wrong})
        return told

    def feed(self, chunk: Chunk) -> list[Chunk]:
        """The chunks that may go out now."""
        observing = self._settings.mode == "observe"
        if self.state is not State.OPEN:
            self._usage.see(chunk)
            return [chunk] if observing else []
        piece = lone_piece(chunk)
        if piece is not None and (passed := self.see(piece)) is not None:
            if passed == piece.text:
                return [chunk]
            return self._chunks(chunk, chunk["choices"][0], [({piece.field: passed}, None)]) if passed else []
        made = self._read(chunk)
        if observing:
            return [chunk]
        self._end_if_hopeless()
        return made

    def see(self, piece: Piece) -> str | None:
        """What may go out of a chunk that holds one piece, for callers that need not read the chunk to know.

        Returns:
            The text that goes out in place of the piece's; None: nothing was done, `feed` the chunk.
        """
        choice = self._choices.get(piece.choice)
        if self.state is not State.OPEN or choice is None or choice.ended or choice.broken:
            return None
        if piece.field == ARGUMENTS:
            if not choice.goes_on(piece.call, piece.text):
                return None
            passed = ""
        elif self._outflows[piece.choice].first:
            passed = choice.text(piece.field, piece.text)
        else:
            return None
        if self._settings.mode == "observe":
            return piece.text
        if choice.violations:
            self._end_if_hopeless()
        return passed

    def finish(self) -> list[Chunk]:
        """The engine's stream is over: the chunks that end the client's, if all is well."""
        if self.state is not State.OPEN:
            return []
        if self._unfinished() and not self._upstream:
            detail = "the stream ended without a finish_reason"
            self._upstream.append(Violation(Outcome.TRUNCATED, Severity.HARD, detail))
        observing = self._settings.mode == "observe"
        lost = not observing and (self._hopeless() or any(choice.blocked for choice in self._choices.values()))
        self._end_attempt(lost=lost)
        return [] if lost or observing else self._usage_chunk()

    def broke(self, detail: str) -> list[Chunk]:
        """The engine's stream ended by a fault of its own, such as a lost connection: as `finish`.

        Args:
            detail: What happened, for logs.
        """
        if self.state is State.OPEN and self._unfinished():
            self._upstream.append(Violation(Outcome.FAILED, Severity.HARD, detail))
        return self.finish()

    def restart(self, pool: str) -> None:
        """The same request runs again.

        Args:
            pool: Where; the client is told.
        """
        if self.state is not State.RERUN:
            raise ValueError(f"nothing to rerun: the answer is {self.state}")
        self.state, self._pool = State.OPEN, pool
        self._choices, self._upstream = {}, []
        if self._whole:
            self._outflows, self._envelope = {}, {}
        for outflow in self._outflows.values():
            outflow.restart()
        self._usage.restart()

    def give_up(self) -> list[Chunk]:
        """There is no further attempt: the answer as it is, marked, where that is allowed, or else an error."""
        if self.state not in (State.RERUN, State.FAILED):
            raise ValueError(f"nothing to give up: the answer is {self.state}")
        if not self._may_leave_marked():
            self.state = State.FAILED
            return [self.error().to_body()]
        self.state = State.DONE
        made = []
        for index, choice in self._choices.items():
            if not self._outflows[index].finished:
                template = {**self._envelope, "choices": [{"index": index, "logprobs": None}]}
                made += self._chunks(template, template["choices"][0], choice.flush())
        return made + self._usage_chunk()

    def error(self) -> IntegrityError:
        """What a client is told when no attempt was right."""
        found = ", ".join(verdict.outcome for verdict in self.verdicts)
        return IntegrityError(f"The model's answer was broken ({found}) and could not be repaired. Please try again.")

    # One chunk

    def _read(self, chunk: Chunk) -> list[Chunk]:
        """What may go out of any chunk."""
        if chunk.get("error") is not None:
            self._upstream.append(Violation(Outcome.FAILED, Severity.HARD, "the engine sent an error"))
        self._usage.see(chunk)
        made: list[Chunk] = []
        choices = choices_of(chunk)
        if choices is None and not self._upstream:
            self._upstream.append(Violation(Outcome.FAILED, Severity.HARD, "a malformed chunk"))
        for choice in choices or ():
            self._envelope = self._envelope or {key: chunk[key] for key in _ENVELOPE if key in chunk}
            made += self._feed_choice(chunk, choice)
        return made

    def _feed_choice(self, chunk: Chunk, choice: Mapping[str, Any]) -> list[Chunk]:
        index = choice.get("index", 0)
        outflow = self._outflow(index)
        if outflow.finished and index not in self._choices:
            return []  # an earlier attempt brought this choice to its end
        guard = self._choices.get(index) or self._new_choice(index)
        if guard.broken or guard.ended:
            return []
        delta, reason = choice.get("delta") or {}, choice.get("finish_reason")
        pairs = list(guard.feed(delta, reason))
        if outflow.first and reason is None and pairs == [(delta, None)] and len(chunk["choices"]) == 1:
            return [chunk]
        return self._chunks(chunk, choice, pairs)

    def _outflow(self, index: int) -> Outflow:
        if index not in self._outflows:
            self._outflows[index] = Outflow(str(self._envelope.get("id", "")), index)
        return self._outflows[index]

    def _new_choice(self, index: int) -> ChoiceGuard:
        guard = ChoiceGuard(index, self._expected, self._settings, self._outflows[index], self._tolerated())
        self._choices[index] = guard
        return guard

    def _tolerated(self) -> frozenset[Severity]:
        if self._settings.mode == "observe":
            return frozenset(Severity)
        if len(self.verdicts) < self._settings.reruns or self._settings.mode == "strict":
            return frozenset()
        return frozenset(Severity) if self._settings.on_failure == "unclean" else frozenset({Severity.SOFT})

    def _chunks(
        self, chunk: Chunk, choice: Mapping[str, Any], pairs: Iterable[tuple[Delta, str | None]]
    ) -> list[Chunk]:
        made = []
        for delta, reason in pairs:
            said = {**choice, "delta": delta, "finish_reason": reason}
            whole = {**chunk, **self._envelope, "choices": [said]}
            whole.pop("usage", None)
            if reason is not None and (report := self.report):
                whole["specgate"] = report
            made.append(whole)
            choice = {**choice, "logprobs": None} if "logprobs" in choice else choice
        return made

    # The end of an attempt

    def _end_if_hopeless(self) -> None:
        if self._hopeless():
            self._end_attempt(lost=True)

    def _hopeless(self) -> bool:
        return bool(self._upstream) or any(choice.broken for choice in self._choices.values())

    def _unfinished(self) -> bool:
        """Whether a choice has not come to its end in this attempt or an earlier one."""
        open_choices = [index for index, choice in self._choices.items() if not choice.ended]
        missing = [index for index, flow in self._outflows.items() if not flow.finished and index not in self._choices]
        return bool(open_choices or missing or not self._outflows)

    def _violations(self) -> tuple[Violation, ...]:
        found = [violation for choice in self._choices.values() for violation in choice.violations]
        return (*self._upstream, *found)

    def _end_attempt(self, *, lost: bool) -> None:
        violations = self._violations()
        worst = gravest(violations)
        # Neither a cut by length nor a rerun that only differs from what went out is a fault of the pool.
        blameless = any(choice.cut or choice.contradicts for choice in self._choices.values())
        outcome = worst.outcome if worst else Outcome.CLEAN
        attempt = len(self.verdicts)
        self.verdicts.append(Verdict(outcome, violations, counts=not blameless))
        if not lost:
            self.state = State.DONE
        else:
            self.state = State.RERUN if attempt < self._settings.reruns else State.FAILED

    def _may_leave_marked(self) -> bool:
        lost = bool(self._upstream) or any(choice.contradicts for choice in self._choices.values())
        if self._settings.mode == "strict" or lost:
            return False
        hard = any(violation.severity is Severity.HARD for violation in self._violations())
        return self._settings.on_failure == "unclean" or not hard

    def _usage_chunk(self) -> list[Chunk]:
        usage = self._usage.total()
        if not self._wants_usage or usage is None:
            return []
        return [{**self._envelope, "choices": [], "usage": usage, **self._usage.extras}]
