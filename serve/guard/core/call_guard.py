"""The tool calls of one choice in one attempt: each goes out once it is complete and right."""

from __future__ import annotations

from collections.abc import Iterable
from typing import Any

from serve.guard.core.client_view import ClientView, Delta, ReadyCall
from serve.guard.core.tool_call import CallCheck, HeldCall
from serve.guard.core.verdict import DefectLog, Outcome, Severity


class CallGuard:
    """Collects calls, checks each when it is complete, and returns it as deltas if it may go out.

    Args:
        choice: Index of the choice.
        check: Checks a call.
        view: What the client has of this choice.
        log: Takes the defects.
    """

    def __init__(self, choice: int, check: CallCheck, view: ClientView, log: DefectLog) -> None:
        self._choice = choice
        self._check = check
        self._view = view
        self._log = log
        self._calls: dict[int, HeldCall] = {}
        self._open: HeldCall | None = None
        self._withheld: list[HeldCall] = []

    @property
    def begun(self) -> bool:
        """True once there is any call."""
        return bool(self._calls)

    def feed(self, entry: Any) -> list[Delta]:
        """Takes one entry of a delta's `tool_calls`; returns the call that it completes by beginning the next."""
        if not HeldCall.accepts(entry):
            self._log.report(Outcome.INVALID_JSON, "a malformed delta of a call", once=True)
            return []
        index = entry.get("index")
        if index is None:
            index = len(self._calls) if entry.get("id") or self._open is None else self._open.index
        call = self._calls.get(index)
        ready: list[Delta] = []
        if call is None:
            ready = self._close()
            call = HeldCall(index)
            self._calls[index] = call
            self._open = call
        elif call is not self._open:
            detail = "a call goes on after the next has begun"
            self._log.report(Outcome.INVALID_JSON, detail, call=index, once=True)
            return []
        call.feed(entry)
        self._report_early(call)
        return ready

    def feed_arguments(self, call: int, arguments: str) -> bool:
        """Adds to the arguments of the open call.

        Args:
            call: Index of the call.
            arguments: What follows of its arguments.

        Returns:
            False if another call is open; then nothing was done.
        """
        if self._open is None or call != self._open.index:
            return False
        self._open.feed_arguments(arguments)
        self._report_early(self._open)
        return True

    def finish(self, *, cut: bool) -> list[Delta]:
        """Completes the last call.

        Args:
            cut: Whether `length` ended the choice; a call that it cut is dropped.
        """
        if cut and self._open is not None and self._open.incomplete:
            self._open = None
            self._log.report(Outcome.TRUNCATED, "a call was cut by length", Severity.NOTE)
        return self._close()

    def rescue(self, calls: Iterable[HeldCall]) -> list[Delta]:
        """Takes in complete calls that were read from leaked markup."""
        ready: list[Delta] = []
        for call in calls:
            self._calls[call.index] = call
            self._open = call
            ready += self._close()
        return ready

    def flush(self) -> list[Delta]:
        """Returns all calls that were held back, right or wrong."""
        held = self._withheld
        if self._open is not None:
            held.append(self._open)
        self._withheld = []
        self._open = None
        return [delta for call in held for delta in self._release(call)]

    def _close(self) -> list[Delta]:
        """Checks the open call, which is complete; returns it if it may go out, and withholds it otherwise."""
        call = self._open
        if call is None:
            return []
        self._open = None
        if defect := self._check.defect(call, self._choice):
            self._log.report_call(defect)
        if self._log.blocked:
            self._withheld.append(call)
            return []
        return self._release(call)

    def _release(self, call: HeldCall) -> list[Delta]:
        try:
            value = call.value
        except ValueError:
            value = None
        return self._view.feed_call(ReadyCall(call.id, call.name, call.arguments, value))

    def _report_early(self, call: HeldCall) -> None:
        if defect := self._check.early_defect(call, self._choice):
            self._log.report_call(defect)
