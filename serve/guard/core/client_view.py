"""The client's view of one choice, so that a rerun adds to what went out and never contradicts or repeats it."""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any, NamedTuple

from serve.guard.core.chunk import OF_A_WHOLE_CHUNK, STOPS, TokenDetails, joined, without_details
from serve.stream.frame import REASONING_NAMES

Delta = dict[str, Any]
LIVE_NOTE = {"arguments": "live"}
"""The note to the client in the chunk that begins a call of which not all is there."""
PARAGRAPH = "\n\n"
DELTA_CHARS = 2048  # of a call's arguments, which go out together once the call is complete


class Step(NamedTuple):
    """A delta that may go out.

    Attributes:
        reason: Why the choice ended, if it did.
        tokens: What the engine says of its tokens, a part per chunk.
        live: Whether it begins a call that goes out as it grows.
    """

    delta: Delta
    reason: str | None = None
    tokens: tuple[TokenDetails, ...] = ()
    live: bool = False


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
        choice: The engine's, whose other members go out as well.
        report: Returns the note to the client, for the chunk that ends the choice.
    """
    chunks = []
    rest = without_details(choice) if any(map(choice.get, OF_A_WHOLE_CHUNK)) else choice
    for delta, reason, tokens, live in steps:
        changed = {**rest, "delta": delta, "finish_reason": reason}
        if tokens:
            changed |= joined(tokens)
        chunk = {**template, "choices": [changed]}
        chunk.pop("usage", None)
        if live:
            chunk["specgate"] = LIVE_NOTE
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

    def end(self) -> None:
        """Notes that the present attempt says no more: if more than that went out, it has left that text here."""
        if self.diverged is None and self.sent[self.matched :].strip():
            self.diverged = [self.sent[: self.matched]]

    def append_diverged(self) -> str:
        """Lets the present attempt's own text follow, as a paragraph of its own."""
        text = "".join(self.diverged or ())
        self.diverged = None
        return self._send(PARAGRAPH + text) if text.strip() else ""

    def _send(self, text: str) -> str:
        if text:
            self.pieces.append(text)
        return text


@dataclass
class LiveCall:
    """A call that goes out as it grows.

    Attributes:
        index: The client's.
        id: As the client has it.
        text: The arguments, as far as they have gone out.
    """

    index: int
    id: str
    name: str
    text: _Text

    @property
    def sent(self) -> str:
        return self.text.sent + "".join(self.text.pieces)

    def is_continued_by(self, name: str, arguments: str) -> bool:
        """Returns whether a call begins with what has gone out."""
        return name == self.name and arguments.startswith(self.sent)


class ClientView:
    """The one stream that the client sees of a choice, made of one or several attempts.

    Text that went out stays. An attempt that begins with the same text is continued where the client is. One that
    begins otherwise, or ends before the client's text does, adds no text; if it holds no calls, its text follows as a
    new paragraph. What it thinks before a content that went out is not sent if the client has no thought yet. A call
    that went out stands: an equal call of a rerun is taken for it and not sent again, or else a call of the same tool.

    A call of which a part went out must be continued by the rerun: only a call with the same beginning can be.

    Args:
        seed: The response's id, from which ids are made for calls that lack a unique one.
        choice: Index of the choice.

    Attributes:
        finished: True once an attempt has brought the choice to its end.
        live: The call of which a part has gone out, and not yet its end.
    """

    def __init__(self, seed: str, choice: int) -> None:
        self.first = True
        self.finished = False
        self.live: LiveCall | None = None
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

    @property
    def names_sent(self) -> list[str]:
        """The tools of the calls that went out, and of the one that has begun to."""
        return [call.name for call in self._sent] + ([self.live.name] if self.live is not None else [])

    def text_sent(self, name: str) -> str:
        text = self._texts.get(name)
        return "" if text is None else text.sent + "".join(text.pieces)

    def restart(self) -> None:
        self.first = False
        for text in self._texts.values():
            text.restart()
        if self.live is not None:
            self.live.text.restart()
        self._unmatched = list(self._sent)
        self._waiting = []
        self._diverged_tokens = []

    def renamed(self, delta: Mapping[str, Any]) -> Mapping[str, Any]:
        """Returns a delta of a rerun with its thoughts under the name that the client knows them by, if it has any."""
        known = [name for name in REASONING_NAMES if (text := self._texts.get(name)) is not None and text.sent]
        others = [name for name in REASONING_NAMES if name in delta and name not in known]
        if not known or not others:
            return delta
        kept = {name: value for name, value in delta.items() if name not in others}
        return {**kept, known[0]: delta.get(known[0]) or delta[others[0]]}

    def repeats(self, name: str) -> bool:
        """Returns whether the present attempt's text has not gone beyond what earlier ones sent.

        Nor has the first thought that the client would get, before a content of which it has more: there it would cut
        that in two.
        """
        text = self._texts.get(name) or self._texts.get("content")
        return text is not None and text.matched < len(text.sent)

    def diverged(self, name: str) -> bool:
        """Returns whether the present attempt's text contradicts what went out."""
        text = self._texts.get(name)
        return text is not None and text.diverged is not None

    def feed_text(self, name: str, text: str) -> str:
        """Returns the part of a text that goes out now."""
        sent = self._texts.get(name)
        if sent is None:
            if self.repeats(name):
                return ""
            sent = self._texts[name] = _Text()
        return sent.feed(text)

    def keep_tokens(self, tokens: Iterable[TokenDetails]) -> None:
        """Keeps the details of a content that contradicts what went out: it may follow at the end."""
        self._diverged_tokens += tokens

    def begin_call(self, identity: str, name: str, arguments: str) -> Step:
        """Begins to send a call whose arguments are still growing, with those that go out at once."""
        self.live = LiveCall(len(self._sent), self._unique_id(identity, name), name, _Text())
        first = self.live.text.feed(arguments)
        return Step({"tool_calls": [_opening(self.live.index, self.live.id, name, first)]}, live=True)

    def may_continue(self, index: int, name: str) -> bool:
        """Returns whether a rerun's call with this index goes on with the one that has begun, after all the others."""
        live = self.live
        if live is None or (live.index, live.name) != (index, name) or len(self._waiting) != index:
            return False
        return all(map(ReadyCall.equals, self._unmatched, self._waiting))

    def extend_call(self, arguments: str) -> str:
        """Returns the part of more arguments that goes out: what the client does not have yet."""
        assert self.live is not None  # nothing is extended that has not begun
        return self.live.text.feed(arguments)

    @property
    def contradicted(self) -> bool:
        """True if the present attempt's call differs from what went out of it."""
        return self.live is not None and self.live.text.diverged is not None

    def more_of_call(self, arguments: str) -> Step:
        """Returns more of the call that has begun as a delta."""
        assert self.live is not None
        return Step({"tool_calls": [{"index": self.live.index, "function": {"arguments": arguments}}]})

    def end_call(self, call: ReadyCall) -> list[Step]:
        """Sends what is left of the call that has begun."""
        live, self.live = self.live, None
        assert live is not None
        self._sent.append(call)
        pieces = _pieces_of(live.index, call.arguments[len(live.sent) :])
        return [*pieces[:-1], pieces[-1]._replace(tokens=call.tokens)]  # there is a last one: the end has not gone out

    def feed_call(self, call: ReadyCall) -> list[Step]:
        """Sends a call, or keeps it until it is clear which of the client's calls the attempt repeats."""
        if self._unmatched or self.live is not None:
            self._waiting.append(call)
            return []
        return self._send(call)

    def finish(self, *, complete: bool = True) -> list[Step]:
        """Sends what waited for the end of the attempt.

        Args:
            complete: Whether the attempt ended where its text does, and nothing cut that.
        """
        self._match(ReadyCall.equals)
        steps = self._continue()
        self._match(ReadyCall.shares_name)
        steps += [step for call in self._waiting for step in self._send(call)]
        content = self._texts.get("content")
        if content is not None and complete:
            content.end()
        if content is not None and not self._sent and self.live is None and (text := content.append_diverged()):
            steps.append(Step({"content": text}, tokens=tuple(self._diverged_tokens)))
        self.finished = True
        return steps

    def _continue(self) -> list[Step]:
        """Ends the call that an earlier attempt has begun, by the first that goes on with it."""
        live = self.live
        if live is None:
            return []
        for place, call in enumerate(self._waiting):
            if live.is_continued_by(call.name, call.arguments):
                del self._waiting[place]
                return self.end_call(call)
        return []  # the request's own limits have cut it

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
        index = len(self._sent) + (self.live is not None)  # which the limit of tokens has cut, and which stays
        self._sent.append(call)
        opening = _opening(index, self._unique_id(call.id, call.name), call.name)
        return [Step({"tool_calls": [opening]}, None, call.tokens), *_pieces_of(index, call.arguments)]

    def _unique_id(self, identity: str, name: str) -> str:
        """Returns the id that a call goes out with: its own, unless it has none or another call of the answer has it.

        It is one of four places that may decide it. An engine whose text we read ourselves has no ids but those that
        its model writes: `RawChoice` (serve/stream/parsed.py) makes the others. Behind the guard, `Answer`
        (serve/dialects/answer.py) gives Messages and Responses ids that are new in the whole conversation, and
        `client_id` (serve/dialects/messages/conversation.py) spells an id so that clients of Messages accept it.
        """
        if not identity or identity in self._ids:
            digest = hashlib.sha256(f"{self._seed}:{len(self._ids)}:{name}".encode()).hexdigest()
            identity = f"call_{digest[:24]}"
        self._ids.add(identity)
        return identity


def _opening(index: int, identity: str, name: str, arguments: str = "") -> Delta:
    return {"index": index, "id": identity, "type": "function", "function": {"name": name, "arguments": arguments}}


def _pieces_of(index: int, arguments: str) -> list[Step]:
    starts = range(0, len(arguments), DELTA_CHARS)
    pieces = [arguments[start : start + DELTA_CHARS] for start in starts]
    return [Step({"tool_calls": [{"index": index, "function": {"arguments": piece}}]}) for piece in pieces]
