"""What has gone out to the client of one choice, so that a rerun adds to it and never contradicts or repeats it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator
from dataclasses import dataclass, field
from typing import Any

Delta = dict[str, Any]
PARAGRAPH = "\n\n"
DELTA_CHARS = 2048  # of a call's arguments, which go out together once the call is complete


@dataclass(frozen=True)
class ReadyCall:
    """A call that may go out.

    Attributes:
        id: The engine's id; may be empty.
        value: The parsed arguments, by which calls of two attempts are compared; None if they are not JSON.
    """

    id: str
    name: str
    arguments: str
    value: Any = None

    def equals(self, other: ReadyCall) -> bool:
        if self.name != other.name:
            return False
        return self.arguments == other.arguments or (self.value is not None and self.value == other.value)

    def shares_name(self, other: ReadyCall) -> bool:
        return self.name == other.name


@dataclass
class _Text:
    """One text field over several attempts.

    Attributes:
        sent: What went out.
        matched: How much of it the present attempt has repeated.
        diverged: What the present attempt says since it left the text that went out; None while it has not.
    """

    sent: str = ""
    matched: int = 0
    diverged: list[str] | None = None
    pieces: list[str] = field(default_factory=list)

    def restart(self) -> None:
        self.sent += "".join(self.pieces)
        self.pieces, self.matched, self.diverged = [], 0, None

    def add(self, text: str) -> str:
        """The part of `text` that the client does not have yet, if it fits what the client has."""
        if self.diverged is not None:
            self.diverged.append(text)
            return ""
        ahead = self.sent[self.matched : self.matched + len(text)]
        if not text.startswith(ahead):
            self.diverged = [self.sent[: self.matched], text]
            return ""
        self.matched += len(ahead)
        return self._gone(text[len(ahead) :])

    def _gone(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text

    def append_diverged(self) -> str:
        """Let the present attempt's own text follow, as a paragraph of its own."""
        text, self.diverged = "".join(self.diverged or ()), None
        return self._gone(PARAGRAPH + text) if text.strip() else ""


class Outflow:
    """The one stream that the client sees of a choice, made of one or several attempts.

    Text that went out stays: an attempt that begins with the same text is continued where the client is; one that
    does not keeps silent, unless it holds no calls, when its text follows as a new paragraph. A call that went out
    stands: a rerun's equal call, or else one of the same tool, is taken for it and not sent again.

    Args:
        seed: The answer's id, from which ids are made for calls that lack a unique one.
        choice: Index of the choice.
    """

    def __init__(self, seed: str, choice: int) -> None:
        self._seed = f"{seed}/{choice}"
        self._texts: dict[str, _Text] = {}
        self._sent: list[ReadyCall] = []
        self._ids: set[str] = set()
        self._attempt = 0
        self._unmatched: list[ReadyCall] = []
        self._waiting: list[ReadyCall] = []
        self.finished = False

    @property
    def first(self) -> bool:
        """Whether this is the first attempt."""
        return self._attempt == 0

    @property
    def calls_sent(self) -> int:
        return len(self._sent)

    def restart(self) -> None:
        """A new attempt begins."""
        self._attempt += 1
        for text in self._texts.values():
            text.restart()
        self._unmatched, self._waiting = list(self._sent), []

    def diverged(self, name: str) -> bool:
        """Whether the present attempt's text contradicts what went out."""
        text = self._texts.get(name)
        return text is not None and text.diverged is not None

    def text(self, name: str, text: str) -> str:
        """The part of a text that goes out now."""
        known = self._texts.get(name)
        if known is None:
            known = self._texts[name] = _Text()
        return known.add(text)

    def call(self, call: ReadyCall) -> Iterator[Delta]:
        """Send a call, or keep it until it is known which calls the client has already."""
        if self._unmatched:
            self._waiting.append(call)
        else:
            yield from self._send(call)

    def finish(self) -> Iterator[Delta]:
        """Send what waited for the end of the attempt."""
        for same in (ReadyCall.equals, ReadyCall.shares_name):
            self._match(same)
        for call in self._waiting:
            yield from self._send(call)
        content = self._texts.get("content")
        if content is not None and not self._sent and (text := content.append_diverged()):
            yield {"content": text}
        self.finished = True

    def _match(self, same: Callable[[ReadyCall, ReadyCall], bool]) -> None:
        """Take waiting calls for calls that went out, each for one."""
        left = []
        for sent in self._unmatched:
            place = next((place for place, call in enumerate(self._waiting) if same(sent, call)), None)
            if place is None:
                left.append(sent)
            else:
                del self._waiting[place]
        self._unmatched = left

    def _send(self, call: ReadyCall) -> Iterator[Delta]:
        index = len(self._sent)
        self._sent.append(call)
        function = {"name": call.name, "arguments": ""}
        yield {"tool_calls": [{"index": index, "id": self._unique(call), "type": "function", "function": function}]}
        for start in range(0, len(call.arguments), DELTA_CHARS):
            piece = call.arguments[start : start + DELTA_CHARS]
            yield {"tool_calls": [{"index": index, "function": {"arguments": piece}}]}

    def _unique(self, call: ReadyCall) -> str:
        identity = call.id
        if not identity or identity in self._ids:
            digest = hashlib.sha256(f"{self._seed}:{len(self._ids)}:{call.name}".encode()).hexdigest()
            identity = f"call_{digest[:24]}"
        self._ids.add(identity)
        return identity
