"""A call whose arguments are one JSON object between markers: they stream as they were written."""

from __future__ import annotations

from serve.parsing.arguments import infer, plain_text, read_object
from serve.parsing.events import ViolationKind
from serve.parsing.json_scanner import JsonScanner
from serve.parsing.machine import State
from serve.parsing.prose import Prose
from serve.parsing.strict_json import repeats_a_key

JSON_SPACE = " \t\r\n"


class JsonCall(Prose):
    """Reads the arguments of a call, and names a call without a name by them."""

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self._begin = 0  # where the call, or the markup in front of it, begins
        self._raw: list[str] = []
        self._header: list[str] = []
        self._trailing = JSON_SPACE  # signs that may stand behind the arguments
        self._space: list[str] = []  # such signs after the arguments so far
        self._unnamed: list[str] | None = None  # arguments of a call that must be named by them
        self._meant: list[str] = []  # tools that the header may name
        self._scanner = JsonScanner()

    def _name(self, header: str) -> str | None:
        """Returns the tool that a header names; None if none is clear, so that the arguments must name it."""
        return header or None

    def _id(self, header: str, name: str) -> str:
        """Returns the id of a call: one of our own, unless the format has ids."""
        return f"call_{self.out.calls}"

    def _begin_arguments(self, header: str) -> State:
        name = self._name(header)
        self._scanner = JsonScanner()
        self.in_string = False
        self._space = []
        self._unnamed = [] if name is None else None
        if name is not None:
            self.out.start_call(self._id(header, name), name)
        return State.ARGUMENTS

    def _fail(self, kind: ViolationKind, raw: str = "") -> None:
        """Reports what was collected, which yields no call."""
        self.out.violation(kind, self._begin, "".join([*self._raw, raw]), hidden=kind != "stray_marker")
        self._raw = []

    def read_arguments(self, raw: str) -> None:
        self._raw.append(raw)
        self.in_string = self._scanner.feed_strings(raw)
        body = raw.rstrip(self._trailing)
        if not body:
            self._space.append(raw)
            return
        text = "".join([*self._space, body]) if self._space else body
        self._space = [raw[len(body) :]] if len(body) < len(raw) else []
        if self._unnamed is not None:
            self._unnamed.append(text)
        elif self.out.has_arguments():
            self.out.arguments(text)
        else:
            self.out.arguments(text.lstrip(JSON_SPACE))

    def end_call(self, raw: str) -> State:
        """Takes the end marker of the call."""
        self._raw.append(raw)
        self._finish_call()
        return State.BETWEEN

    def end_output(self, raw: str) -> State:
        """Ends the output inside the call."""
        self._finish_call(cut=True)
        return State.BETWEEN

    def _finish_call(self, cut: bool = False) -> None:
        """Ends the call; one without its end marker is complete if its JSON is."""
        raw = "".join(self._raw)
        self._raw = []
        if self._unnamed is not None and not self._infer(raw):
            return
        arguments = self.out.current_arguments()
        fault: ViolationKind | None = None
        if not arguments and not cut:
            self.out.arguments("{}")
        elif cut and read_object(arguments) is None:
            fault = "unfinished_call"
        self.out.end_call(self._begin, raw, fault)

    def _infer(self, raw: str) -> bool:
        """Names a call by its arguments; returns False if they name none."""
        text = "".join(self._unnamed or ()).strip(JSON_SPACE)
        arguments = read_object(text or "{}")
        found = None if arguments is None else infer(arguments, self.tools, self._meant)
        if found is not None and found.arguments is not None:
            text = "" if repeats_a_key(text, arguments or ()) else plain_text(found.arguments)
            found = found if text else None
        if found is None:
            self.out.violation("unresolved_call", self._begin, raw, hidden=True)
            return False
        self.out.start_call(self._id("".join(self._header).strip(), found.name), found.name)
        if text:
            self.out.arguments(text)
        return True
