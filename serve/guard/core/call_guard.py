"""The tool calls of one choice in one attempt: held back, checked, and sent once they are complete and right."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterable, Iterator
from typing import Any

from serve.guard.core.call_assembly import MAX_CALLS, CallAssembly, Entry, HeldCall
from serve.guard.core.call_check import CallCheck
from serve.guard.core.chunk import TokenDetails
from serve.guard.core.client_view import ClientView, ReadyCall, Step
from serve.guard.core.json_prefix import STRUCTURE
from serve.guard.core.live_prefix import LivePrefix
from serve.guard.core.markup import REPLACEMENT
from serve.guard.core.verdict import (
    DefectLog,
    Outcome,
    Severity,
    ends_in_repetition,
)

_BREAKS = re.compile(f"{STRUCTURE.pattern}|{REPLACEMENT}")


class CallGuard:
    """Collects calls, checks each when it is complete, and returns it as deltas if it may go out.

    Calls go out in the order in which they began. Before the choice ends, a call goes out only if its JSON is complete,
    another has begun, and nothing is wrong with it or one before it; a `live` one, while it grows. One without
    arguments may still get some. If the request allows a `single` call, what follows the first is dropped.
    """

    def __init__(
        self, check: CallCheck, view: ClientView, log: DefectLog, *, single: bool, live: bool, hasty: bool
    ) -> None:
        self._check = check
        self._view = view
        self._log = log
        self._single = single
        self._assembly = CallAssembly(check.declares)
        self._current: HeldCall | None = None  # the one that the last entry was of
        self._newest: HeldCall | None = None
        self._hasty = hasty and log.stops(Severity.SUSPECT)
        self._checked = 0  # calls that have been checked, of all that have begun
        self._withheld: list[HeldCall] = []  # checked, and not sent
        self._released = 0
        self._goes_live = live and (view.live is not None or not view.calls_sent)
        self._live: HeldCall | None = None  # the one of which a part has gone out
        self._prefix: LivePrefix | None = None  # of its arguments
        self._followed: HeldCall | None = None  # the one of which there is nothing to ask any more
        self._asked = -1  # index of the last call that was asked whether it can

    @property
    def begun(self) -> bool:
        return bool(self._assembly.calls)

    @property
    def any_stripped(self) -> bool:
        """True if a call is without arguments that it could have had."""
        return any(map(self._is_stripped, self._assembly.calls))

    @property
    def perhaps_cut(self) -> bool:
        """True if a limit may have cut the last call."""
        last = self._assembly.newest
        return last is not None and (last.incomplete or self._is_stripped(last))

    def _is_stripped(self, call: HeldCall) -> bool:
        return call.is_empty and not self._check.takes_nothing(call.name)

    def makes(self, call: HeldCall) -> bool:
        """Returns whether a call like this one is among those that have arrived."""
        return any(each.equals(call) for each in self._assembly.calls)

    def feed(self, raw: Any) -> None:
        """Takes one entry of a delta's `tool_calls`."""
        entry = Entry.of(raw)
        if entry is None:
            self._log.report(Outcome.INVALID_JSON, "a malformed delta of a call", once=True)
            return
        call = self._assembly.take(entry)
        if call is None:
            self._log.report(Outcome.INVALID_JSON, f"more than {MAX_CALLS} calls", once=True)
            return
        self._current = call
        if self._single and len(self._assembly.calls) > 1:
            self._newest = None
            if self._assembly.first_of(call) is call:  # else it may be that one once more
                self._report_surplus()
            return
        self._newest = self._assembly.newest
        if call.prefix.broken or entry.name:
            self._report_early(call)
        if self._hasty and REPLACEMENT in entry.arguments:
            self._report_cut_character(call)

    def feed_arguments(self, place: int, arguments: str) -> str | None:
        """Adds to the arguments of the call that began last.

        Args:
            place: The engine's index of the call.
            arguments: What follows of its arguments.

        Returns:
            The part of the arguments that goes out. None if that is another call, or one that may begin to go out; then
            nothing was done.
        """
        call = self._newest
        if call is None or place != call.place:
            return None
        if call is not self._followed and self._goes_live and self._may_begin(call):
            return None
        call.feed_arguments(arguments)
        prefix = call.prefix
        if prefix.broken:
            self._report_early(call)
        elif self._hasty and REPLACEMENT in arguments:
            self._report_cut_character(call)
        elif prefix is self._prefix and prefix.ready and (ready := self._more()):
            return ready
        return ""

    def breaks(self, place: int) -> Callable[[str], object] | None:
        """Returns what finds arguments that do more than add to a string of the held call that began last.

        None if any may.
        """
        call = self._newest
        held = call is not None and call.place == place and call.prefix.in_string and not self._goes_live
        return _BREAKS.search if held else None

    def _may_begin(self, call: HeldCall) -> bool:
        """Returns whether a call may begin to go out, or goes on with one that an earlier attempt has begun."""
        return self._asked < call.index == self._checked or call is self._live

    def keep_tokens(self, tokens: Iterable[TokenDetails]) -> bool:
        """Keeps details with the call of the last entry; returns False if there is none that is still held."""
        if self._current is None or self._current.index < self._released:
            return False
        self._current.tokens += tokens
        return True

    def ready(self) -> list[Step]:
        """Returns the calls that may go out before the choice ends."""
        steps: list[Step] = []
        calls = self._assembly.calls
        while self._checked + 1 < len(calls) and not self._single:
            call = calls[self._checked]
            if not call.is_whole:
                break
            if call is self._live and self._contradicts(call):
                self._report_contradiction()
                break
            right = self._judge(call)
            if right and (call is self._live or (not self._withheld and not self._log.blocked)):
                steps += self._release(call)
            else:
                self._withheld.append(call)
        return steps + self._grow() if self._goes_live else steps

    def _grow(self) -> list[Step]:
        """Returns what may go out of the first call that is not whole."""
        calls = self._assembly.calls
        if self._live is not None:
            return [self._view.more_of_call(ready)] if (ready := self._more()) else []
        if self._checked < len(calls) and self._asked < self._checked:
            return self._begin_live(calls[self._checked])
        return []

    def _begin_live(self, call: HeldCall) -> list[Step]:
        """Begins to send a call, if that can be done before it is whole."""
        if not any(map(str.strip, call.pieces)):  # its name may not be whole
            return []
        if self._assembly.first_of(call) is not call:  # and it may be that one once more
            return []
        self._asked = call.index
        if not call.begins_object:
            return []
        outline = None
        begun = self._view.live
        if begun is not None and not self._view.may_continue(call.index, call.name):
            return []
        if call.index == call.place and not self._withheld and not self._log.blocked and not call.prefix.broken:
            outline = self._check.outline(call.name)
        if outline is None:
            return []
        prefix = LivePrefix(outline)
        call.follow(prefix)
        if not prefix.begun:
            return []
        self._live, self._prefix = call, prefix
        self._followed = call if self._view.first else None
        if begun is None:
            return [self._view.begin_call(call.id, call.name, prefix.take())]
        return [self._view.more_of_call(ready)] if (ready := self._more()) else []

    def _more(self) -> str:
        """Returns what may go out of the call that has begun."""
        prefix = self._prefix
        if prefix is None or not prefix.ready or self._log.blocked:
            return ""
        ready = self._view.extend_call(prefix.take())
        if self._view.contradicted:
            self._report_contradiction()
        return ready

    def finish(self, *, cut: bool, by_length: bool = False) -> list[Step]:
        """Completes all calls.

        Args:
            cut: Whether the request's own limits ended the choice; a call that they cut is dropped.
            by_length: Whether that was its length; then a call of which a part went out may stay so, as the finish
                reason says.
        """
        tokens: list[TokenDetails] = []
        steps: list[Step] = []
        if self._single:
            self._report_surplus()
        for call in self._unchecked():
            if call is self._live and self._contradicts(call):
                self._checked += 1
                self._report_contradiction()
            elif call is self._live and not (cut and by_length and self._is_cut(call)):
                if self._judge(call):
                    steps += self._release(call)
                else:
                    self._withheld.append(call)
            elif cut and self._is_cut(call):
                self._checked += 1
                detail = "a call was cut by the request's own limits"
                self._log.report(Outcome.TRUNCATED, detail, Severity.NOTE, once=True)
                if by_length and ends_in_repetition("".join(call.pieces)):
                    severity = Severity.NOTE if call is self._live else Severity.SUSPECT
                    self._log.report(Outcome.REPETITION, "a call without end", severity, once=True)
                tokens += call.tokens
            else:
                self._judge(call)
                self._withheld.append(call)
        self._check_continued()
        if not self._log.blocked:
            steps += self._release_all()
        return [*steps, Step({}, tokens=tuple(tokens))] if tokens else steps

    def rescue(self, calls: Iterable[HeldCall]) -> list[Step]:
        """Takes in complete calls that were read from leaked markup."""
        self._assembly.calls += calls
        return self.finish(cut=False)

    def flush(self) -> list[Step]:
        """Returns all calls that were held back, right or wrong."""
        for call in self._unchecked():
            self._checked += 1
            self._withheld.append(call)
        return self._release_all()

    def _unchecked(self) -> Iterator[HeldCall]:
        """Yields the calls that have not been checked, without those that the client does not want."""
        calls = self._assembly.calls
        yield from calls[self._checked : 1 if self._single else None]

    def _report_surplus(self) -> None:
        if not all(map(self._assembly.is_said_again, self._assembly.calls[1:])):
            detail = "more than the one call that the request allows"
            self._log.report(Outcome.PARALLEL_CALLS, detail, Severity.SOFT, once=True)

    def _judge(self, call: HeldCall) -> bool:
        """Checks a complete call; returns whether it may go out at once."""
        self._checked += 1
        begun = self._view.live.sent if self._view.live is not None and call is self._live else ""
        defect, mended = self._check.judge(call, begun)
        for detail in mended:
            self._log.report(Outcome.RESCUED, detail, Severity.NOTE, once=True)
        defect = defect or self._check.near_copy(call)
        if defect is None:
            return True
        self._log.report_call(defect)
        return defect.severity is Severity.NOTE

    def _is_cut(self, call: HeldCall) -> bool:
        """Returns whether a limit may have cut a call: one without arguments might have got some, had it gone on."""
        last = call is self._assembly.newest
        if not call.incomplete and not (last and call.arguments.strip() == "{}"):  # as vLLM writes what is cut there
            return False
        if call.incomplete and (last or not call.is_empty):
            return True
        defect = self._check.defect(call)
        return defect is not None and defect.severity is not Severity.NOTE

    def _contradicts(self, call: HeldCall) -> bool:
        """Returns whether a call does not go on with what an earlier attempt has sent of it."""
        begun = self._view.live
        return begun is not None and not begun.is_continued_by(call.name, call.arguments)

    def _check_continued(self) -> None:
        """Reports if the attempt does not go on with the call that an earlier one has begun to send."""
        begun = self._view.live
        if begun is None or self._view.first:
            return
        if not any(begun.is_continued_by(call.name, call.arguments) for call in self._assembly.calls):
            self._report_contradiction()

    def _report_contradiction(self) -> None:
        self._log.contradicts = True
        self._log.report(Outcome.FAILED, "the rerun's calls do not begin with what went out", once=True)

    def _release_all(self) -> list[Step]:
        released = self._withheld
        self._withheld = []
        return [step for call in released for step in self._release(call)]

    def _release(self, call: HeldCall) -> list[Step]:
        self._released = call.index + 1
        if self._assembly.is_said_again(call):
            return []
        try:
            value = call.value
        except ValueError:
            value = None
        ready = ReadyCall(call.id, call.name, call.arguments, value, tuple(call.tokens))
        if call is not self._live:
            return self._view.feed_call(ready)
        self._live = self._prefix = None
        return self._view.end_call(ready)

    def _report_cut_character(self, call: HeldCall) -> None:
        self._log.report_call(self._check.cut_character(call))

    def _report_early(self, call: HeldCall) -> None:
        if defect := self._check.early_defect(call):
            self._log.report_call(defect)
