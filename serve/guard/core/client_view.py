"""The client's view of one choice, so that a rerun adds to what went out and never contradicts or repeats it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serve.guard.core.chunk import STOPS
from serve.guard.core.token_details import OF_A_WHOLE_CHUNK, TokenDetails, joined, without_details

Delta = dict[str, Any]
PARAGRAPH = "\n\n"
DELTA_CHARS = 2048  # of a call's arguments, which go out together once the call is complete


class Step(NamedTuple):
    """A delta that may go out, its finish reason, and what the engine says of its tokens, a part per chunk."""

    delta: Delta
    reason: str | None = None
    tokens: tuple[TokenDetails, ...] = ()


def chunks_of(
    steps: Iterable[Step],
    template: Mapping[str, Any],
    choice: Mapping[str, Any],
    report: Callable[[], Mapping[str, Any]],
) -> list[dict[str, Any]]:
    """Returns the steps of one choice, a chunk each.

    Args:
        steps: What may go out.
        template: The members of the chunks that are not the choice's.
        choice: The engine's choice, whose other members go out as well.
        report: Returns the note to the client, for the chunk that ends the choice.
    """
    chunks = []
    rest = without_details(choice) if any(map(choice.get, OF_A_WHOLE_CHUNK)) else choice
    for delta, reason, tokens in steps:
        changed = {**rest, "delta": delta, "finish_reason": reason}
        if tokens:
            changed |= joined(tokens)
        chunk = {**template, "choices": [changed]}
        chunk.pop("usage", None)
        if reason is not None:
            changed |= {name: choice[name] for name in STOPS if name in choice}
            if note := report():
                chunk["specgate"] = note
        chunks.append(chunk)
    return chunks


@dataclass(frozen=True)
class ReadyCall:
    """A call that may go out.

    Attributes:
        id: The engine's id; may be empty.
        name: Of the tool.
        arguments: As JSON text.
        value: The parsed arguments, by which calls of two attempts are compared; None if they are not JSON.
        tokens: What the engine says of its tokens.
    """

    id: str
    name: str
    arguments: str
    value: Any = None
    tokens: tuple[TokenDetails, ...] = ()

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
        sent: What earlier attempts sent.
        matched: How much of it the present attempt has repeated.
        diverged: What the present attempt says since it left the text that went out; None while it has not.
        pieces: What the present attempt sent.
    """

    sent: str = ""
    matched: int = 0
    diverged: list[str] | None = None
    pieces: list[str] = field(default_factory=list)

    def restart(self) -> None:
        self.sent += "".join(self.pieces)
        self.pieces = []
        self.matched = 0
        self.diverged = None

    def feed(self, text: str) -> str:
        """Returns the part of `text` that the client does not have yet, if it fits what the client has."""
        if not self.sent:
            return self._send(text)
        if self.diverged is not None:
            self.diverged.append(text)
            return ""
        ahead = self.sent[self.matched : self.matched + len(text)]
        if not text.startswith(ahead):
            self.diverged = [self.sent[: self.matched], text]
            return ""
        self.matched += len(ahead)
        return self._send(text[len(ahead) :])

    def append_diverged(self) -> str:
        """Lets the present attempt's own text follow, as a paragraph of its own."""
        text = "".join(self.diverged or ())
        self.diverged = None
        return self._send(PARAGRAPH + text) if text.strip() else ""

    def _send(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text


class ClientView:
    """The one stream that the client sees of a choice, made of one or several attempts.

    Text that went out stays. An attempt that begins with the same text is continued where the client is. One that
    begins otherwise adds no text; if it holds no calls, its text follows as a new paragraph. A call that went out
    stands: an equal call of a rerun is taken for it and not sent again, or else a call of the same tool.

    Args:
        seed: The response's id, from which ids are made for calls that lack a unique one.
        choice: Index of the choice.

    Attributes:
        first: True during the first attempt.
        finished: True once an attempt has brought the choice to its end.
    """

    def __init__(self, seed: str, choice: int) -> None:
        self.first = True
        self.finished = False
        self._seed = f"{seed}/{choice}"
        self._texts: dict[str, _Text] = {}
        self._sent: list[ReadyCall] = []
        self._ids: set[str] = set()
        self._unmatched: list[ReadyCall] = []
        self._waiting: list[ReadyCall] = []
        self._diverged_tokens: list[TokenDetails] = []

    @property
    def calls_sent(self) -> int:
        return len(self._sent)

    def restart(self) -> None:
        """Prepares for the next attempt."""
        self.first = False
        for text in self._texts.values():
            text.restart()
        self._unmatched = list(self._sent)
        self._waiting = []
        self._diverged_tokens = []

    def repeats(self, name: str) -> bool:
        """Returns whether the present attempt's text has not gone beyond what earlier ones sent."""
        text = self._texts.get(name)
        return text is not None and text.matched < len(text.sent)

    def diverged(self, name: str) -> bool:
        """Returns whether the present attempt's text contradicts what went out."""
        text = self._texts.get(name)
        return text is not None and text.diverged is not None

    def feed_text(self, name: str, text: str) -> str:
        """Returns the part of a text that goes out now."""
        sent = self._texts.get(name)
        if sent is None:
            sent = self._texts[name] = _Text()
        return sent.feed(text)

    def keep_tokens(self, tokens: Iterable[TokenDetails]) -> None:
        """Keeps the details of a content that contradicts what went out: it may follow at the end."""
        self._diverged_tokens += tokens

    def feed_call(self, call: ReadyCall) -> list[Step]:
        """Sends a call, or keeps it until it is clear which of the client's calls the attempt repeats."""
        if self._unmatched:
            self._waiting.append(call)
            return []
        return self._send(call)

    def finish(self) -> list[Step]:
        """Sends what waited for the end of the attempt."""
        for same in (ReadyCall.equals, ReadyCall.shares_name):
            self._match(same)
        steps = [step for call in self._waiting for step in self._send(call)]
        content = self._texts.get("content")
        if content is not None and not self._sent and (text := content.append_diverged()):
            steps.append(Step({"content": text}, tokens=tuple(self._diverged_tokens)))
        self.finished = True
        return steps

    def _match(self, same: Callable[[ReadyCall, ReadyCall], bool]) -> None:
        """Pairs each call that went out with one that waits, and drops both."""
        unmatched = []
        for sent in self._unmatched:
            place = next((place for place, call in enumerate(self._waiting) if same(sent, call)), None)
            if place is None:
                unmatched.append(sent)
            else:
                del self._waiting[place]
        self._unmatched = unmatched

    def _send(self, call: ReadyCall) -> list[Step]:
        index = len(self._sent)
        self._sent.append(call)
        function = {"name": call.name, "arguments": ""}
        opening = {"index": index, "id": self._unique_id(call), "type": "function", "function": function}
        arguments = call.arguments
        starts = range(0, len(arguments), DELTA_CHARS)
        pieces = [arguments[start : start + DELTA_CHARS] for start in starts]
        more = [{"index": index, "function": {"arguments": piece}} for piece in pieces]
        first = Step({"tool_calls": [opening]}, None, call.tokens)
        return [first, *(Step({"tool_calls": [entry]}) for entry in more)]

    def _unique_id(self, call: ReadyCall) -> str:
        identity = call.id
        if not identity or identity in self._ids:
            digest = hashlib.sha256(f"{self._seed}:{len(self._ids)}:{call.name}".encode()).hexdigest()
            identity = f"call_{digest[:24]}"
        self._ids.add(identity)
        return identity
