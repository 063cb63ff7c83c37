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

    def open_block(self, raw: str) -> State:
        """`<tool_call>` in prose."""
        self._origin = State.REASONING if self.state is State.REASONING else State.CONTENT
        self.begin, self.raw = self.position, [raw]
        return State.OPENED

    def reopen_block(self, raw: str) -> State:
        """`<tool_call>` behind another that led nowhere."""
        self.release()
        self.begin, self.raw = self.position, [raw]
        return State.OPENED

    def not_a_call(self, raw: str) -> State | None:
        """Text, or a marker that cannot follow, behind an opening tag: prose, unless it stood like a call."""
        raw = self.keep_space(raw)
        if not raw:
            return None
        meant = raw[0] == "<" or "\n" in "".join(self.raw)
        origin = self.release("malformed_call" if meant else None)
        if self.lexicon.kind(raw):
            return self.dispatch(raw, origin)
        self._write(raw)
        return origin

    def keep_space(self, raw: str) -> str:
        """Add the whitespace at the beginning of `raw` to what is held back; the rest of it."""
        rest = raw.lstrip()
        if len(rest) < len(raw):
            self.raw.append(raw[: len(raw) - len(rest)])
        return rest

    def empty_block(self, raw: str) -> State:
        """`</tool_call>` right behind the opening tag: nothing, in content; in reasoning, a word."""
        if self._origin is State.REASONING:
            self.release()
            self._write(raw)
            return State.REASONING
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
        return None if raw.isspace() else State.CONTENT

    def close_block(self, raw: str) -> State:
        self.out.boundary()
        return State.CONTENT

    def _write(self, text: str) -> None:
        if self._origin is State.REASONING:
            self.out.reasoning(text)
        else:
            self.out.content(text)
