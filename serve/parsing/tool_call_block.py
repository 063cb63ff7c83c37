"""The block around a call, mostly `<tool_call>`: whether its opening tag begins a call or is quoted in prose."""

from __future__ import annotations

from serve.parsing.events import ViolationKind
from serve.parsing.machine import State
from serve.parsing.prose import Prose

QWEN_IDS = {151657: "<tool_call>", 151658: "</tool_call>", 151667: "<think>", 151668: "</think>"}  # Qwen3's own


_ENDS = ("end_block", "end_function")


class Block(Prose):
    """Holds an opening tag back until the text after it shows whether a call was meant.

    Attributes:
        begin: Where the call begins.
        raw: The call as the model wrote it.
        spoiled: Inside a block that is reported already, and whose text is content.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.begin = 0
        self.raw: list[str] = []
        self._origin = State.CONTENT
        self._unclosed = False  # text came after a call, its block still open
        self.rest = ""  # of a piece of the output, behind a call
        self.spoiled = False

    def begin_call(self, origin: State, begin: int, *raw: str) -> None:
        """Begins to hold back what may be a call. Its origin is the state of the prose that it stands in; its first
        marker comes along if that is part of it.
        """
        self._origin = origin
        self.begin = begin
        self.raw = list(raw)

    def open_block(self, raw: str) -> State:
        """Takes `<tool_call>` in prose."""
        self._unclosed = False
        self.spoiled = False
        self.begin_call(State.REASONING if self.state is State.REASONING else State.CONTENT, self.position, raw)
        return State.OPENED

    def reopen_block(self, raw: str) -> State | None:
        """Takes a second `<tool_call>` right after the first, which is one too many."""
        self.out.violation("stray_marker", self.begin, "".join(self.raw))
        self.begin_call(self._origin, self.position, raw)
        return None

    def not_a_call(self, raw: str) -> State | None:
        """Takes text, or a marker that cannot follow an opening tag: prose, unless it looks like a call."""
        raw = self.keep_space(raw)
        if not raw:
            return None
        meant = raw[0] in "<{[" or "\n" in "".join(self.raw)
        return self.back_to_prose(raw, self.fault() if meant else None)

    def back_to_prose(self, raw: str, fault: ViolationKind | None) -> State:
        """Releases what was held back, and hands on the token that showed it to be no call."""
        origin = self.release(fault)
        if self.lexicon.kind(raw):
            return self.dispatch(raw, origin)
        self._write(raw)
        return origin

    def malformed(self, raw: str) -> State:
        """Releases a call that a marker has spoilt, and the marker with it."""
        self.enter_call()
        self.raw.append(raw)
        return self.release("malformed_call")

    def fault(self) -> ViolationKind:
        """Returns the violation of a call that goes no further."""
        return "unfinished_call" if self.ended else "malformed_call"

    def keep_space(self, raw: str) -> str:
        """Adds the whitespace at the beginning of `raw` to what is held back; returns the rest."""
        rest = raw.lstrip()
        if len(rest) < len(raw):
            self.raw.append(raw[: len(raw) - len(rest)])
        return rest

    def empty_block(self, raw: str) -> State:
        """Takes `</tool_call>` right after the opening tag: a call that never came in content, a word in reasoning."""
        if self._origin is State.REASONING:
            self.release()
            self._write(raw)
            return State.REASONING
        self.out.violation("malformed_call", self.begin, "".join([*self.raw, raw]), hidden=True)
        self.out.boundary()
        return State.CONTENT

    def cut_block(self, raw: str) -> State:
        """Ends the output after an opening tag."""
        return self.release("unfinished_call")

    def release(self, fault: ViolationKind | None = None) -> State:
        """Returns the text that was held back to the prose that it came from."""
        text = "".join(self.raw)
        self.raw = []
        if fault:
            self.out.violation(fault, self.begin, text)
            self.spoiled = True
        self._write(text)
        return self._origin

    def enter_call(self) -> None:
        """Leaves reasoning, if the call stands in it."""
        if self._origin is State.REASONING:
            self.out.end_reasoning(keep_space=True)
            self.reasoning_ends(self.begin)
            self._origin = State.CONTENT

    def finish_call(self, fault: ViolationKind | None = None) -> None:
        """Ends the call, whose text is what was collected."""
        self.out.end_call(self.begin, "".join(self.raw), fault)
        self.raw = []

    def leave_call(self, raw: str) -> State:
        """Ends a call that is not whole, at the marker that cut it or at the end of the output."""
        kind = self.lexicon.kind(raw)
        if kind == "end_block":
            self.raw.append(raw)
        self.finish_call("unfinished_call")
        return self.dispatch(raw, State.CONTENT) if kind == "block" else State.CONTENT

    def go_on(self, state: State | None, end: int) -> State | None:
        """Reads what stands behind a call in the same piece of the output, which ends at a place; many calls may."""
        while rest := self.rest:
            self.rest = ""
            state = self.follow(rest, end - len(rest))
        return state

    def follow(self, raw: str, begin: int) -> State:
        """Reads text behind a call, which begins at a place of the output."""
        return self.write_behind(raw) or State.AFTER

    def write_behind(self, raw: str) -> State | None:
        """Takes text after a call whose block is still open."""
        self.out.content(raw)
        if raw.isspace():
            return None
        self._unclosed = True
        return State.CONTENT

    def close_block(self, raw: str) -> State:
        """Takes `</tool_call>` after a call, or after what was meant as one and is content with its opening tag."""
        if self.spoiled:
            self.out.content(raw)
            self.spoiled = False
        self.out.boundary()
        return State.CONTENT

    def stray_tag(self, raw: str) -> None:
        """Takes a tag in content that belongs to no call: markup if a block was open, or else a word."""
        closes = self.lexicon.kind(raw) == "end_block"
        if self.out.at_call and self.lexicon.kind(raw) in _ENDS and not self.spoiled:
            self.stray(raw)
            return
        if not self.spoiled:
            self.out.violation("stray_marker", self.position, raw)
        if closes and self._unclosed:
            self.out.boundary()
        else:
            self.out.content(raw)
        if closes:
            self._unclosed = False
            self.spoiled = False

    def report(self, kind: ViolationKind, position: int, raw: str) -> None:
        """Reports a fault of the call that leaves it readable."""
        self.out.violation(kind, position, raw, self.out.calls - 1)

    def _write(self, text: str) -> None:
        if self._origin is State.REASONING:
            self.out.reasoning(text)
        elif text:
            self.out.content(text)
