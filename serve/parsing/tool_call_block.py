"""What the two `<tool_call>` formats share: the opening tag, which prose may quote."""

from __future__ import annotations

from serve.parsing.events import ViolationKind
from serve.parsing.machine import State
from serve.parsing.prose import Prose

QWEN_IDS = {151657: "<tool_call>", 151658: "</tool_call>", 151667: "<think>", 151668: "</think>"}  # Qwen3's own


class Block(Prose):
    """Holds an opening tag back until what follows shows whether a call was meant.

    Attributes:
        begin: Where the call begins.
        raw: The call as the model wrote it.
    """

    def __init__(self, *args: object) -> None:
        super().__init__(*args)
        self.begin = 0
        self.raw: list[str] = []
        self._origin = State.CONTENT
        self._unclosed = False  # text came behind a call, its block still open
        self._spoiled = False  # inside a block that is reported already

    def open_block(self, raw: str) -> State:
        """`<tool_call>` in prose."""
        self._origin = State.REASONING if self.state is State.REASONING else State.CONTENT
        self._unclosed = self._spoiled = False
        self.begin, self.raw = self.position, [raw]
        return State.OPENED

    def reopen_block(self, raw: str) -> None:
        """`<tool_call>` right behind another: one too many."""
        self.out.violation("stray_marker", self.begin, "".join(self.raw))
        self.begin, self.raw = self.position, [raw]

    def not_a_call(self, raw: str) -> State | None:
        """Text, or a marker that cannot follow, behind an opening tag: prose, unless it stood like a call."""
        raw = self.keep_space(raw)
        if not raw:
            return None
        meant = raw[0] in "<{[" or "\n" in "".join(self.raw)
        origin = self.release(self.fault() if meant else None)
        if self.lexicon.kind(raw):
            return self.dispatch(raw, origin)
        self._write(raw)
        return origin

    def fault(self) -> ViolationKind:
        """What is wrong with a call that goes no further."""
        return "unfinished_call" if self.ended else "malformed_call"

    def keep_space(self, raw: str) -> str:
        """Add the whitespace at the beginning of `raw` to what is held back; the rest of it."""
        rest = raw.lstrip()
        if len(rest) < len(raw):
            self.raw.append(raw[: len(raw) - len(rest)])
        return rest

    def empty_block(self, raw: str) -> State:
        """`</tool_call>` right behind the opening tag: a call that never came, in content; in reasoning, a word."""
        if self._origin is State.REASONING:
            self.release()
            self._write(raw)
            return State.REASONING
        self.out.violation("malformed_call", self.begin, "".join([*self.raw, raw]), hidden=True)
        self.out.boundary()
        return State.CONTENT

    def cut_block(self, raw: str) -> State:
        """The output ends behind an opening tag."""
        return self.release("unfinished_call")

    def release(self, fault: ViolationKind | None = None) -> State:
        """Give the text held back to the prose that it came from."""
        text, self.raw = "".join(self.raw), []
        if fault:
            self.out.violation(fault, self.begin, text)
            self._spoiled = True
        self._write(text)
        return self._origin

    def enter_call(self) -> None:
        """A call it is."""
        if self._origin is State.REASONING:
            self.out.end_reasoning(keep_space=True)
            self.reasoning_end = self.begin
            self._origin = State.CONTENT

    def write_behind(self, raw: str) -> State | None:
        """Text behind a call, its block still open."""
        self.out.content(raw)
        if raw.isspace():
            return None
        self._unclosed = True
        return State.CONTENT

    def close_block(self, raw: str) -> State:
        self.out.boundary()
        return State.CONTENT

    def surplus_tag(self, raw: str) -> None:
        """A tag right behind a call, once too often."""
        self.out.violation("stray_marker", self.position, raw)

    def stray_tag(self, raw: str) -> None:
        """A tag in content that belongs to no call. It is taken out where a block was open, else it stays as a word."""
        closes = self.lexicon.kind(raw) == "end_block"
        if not self._spoiled:
            self.out.violation("stray_marker", self.position, raw)
        if closes and self._unclosed:
            self.out.boundary()
        else:
            self.out.content(raw)
        if closes:
            self._unclosed = self._spoiled = False

    def _write(self, text: str) -> None:
        if self._origin is State.REASONING:
            self.out.reasoning(text)
        else:
            self.out.content(text)
