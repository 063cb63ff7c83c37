"""A plain stream that several engines write: what its client has of it, and the rest as more of the same stream.

Nobody has asked the first engine for the ids of its tokens. So what the client has (`PlainAnswer`) becomes the text
that its model wrote (`raw_of`), and that becomes tokens again (`retold`), with which the next engine begins. Of what
comes then, the client gets what is new (`ResumedStream`).
"""

from __future__ import annotations

import unicodedata
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, NamedTuple, TypeVar

import msgspec

from serve.errors import EngineError
from serve.guard.cut import NOTHING_HAD, Had, joined
from serve.http1.sse import is_done
from serve.parsing import StreamParser
from serve.proxy.attempts import Ask
from serve.request.completion import MALFORMED
from serve.request.resuming import CannotResumeError
from serve.stream.continuation import TURN_ENDS, AsItIs, KeptPrefix
from serve.stream.ending import error_around, error_in, is_finish
from serve.stream.frame import ARGUMENTS, TEXTS, Frame, FrameReader
from serve.stream.line import Check
from serve.stream.parsed import RawChoice

T = TypeVar("T", bound=msgspec.Struct)
_TOKENIZE, _DETOKENIZE = "/tokenize", "/detokenize"
_REASONING, _CONTENT = "reasoning", "content"
_ENVELOPE = ("id", "created", "system_fingerprint")


class PlainAnswer:
    """The part of a plain stream, with one choice, that the client has.

    Args:
        chat: It is a chat answer, and no text completion.

    Attributes:
        envelope: Of its chunks.
        finished: Its finish reason is out.
        reasoning: The name of its reasoning.
        chat: It is a chat answer.
    """

    def __init__(self, *, chat: bool = True) -> None:
        self.chat = chat
        self.envelope: dict[str, Any] = {}
        self.finished = False
        self.reasoning = _REASONING
        self._readable = True
        self._texts: dict[str, list[str]] = {}

    @property
    def begun(self) -> bool:
        """True once something of the answer itself is out."""
        return bool(self._texts) or not self._readable

    @property
    def length(self) -> int:
        """Characters that went out."""
        return sum(len(text) for texts in self._texts.values() for text in texts)

    @property
    def had(self) -> Had:
        """The answer as it went out.

        Raises:
            CannotResumeError: It is not known.
        """
        if not self._readable:
            raise CannotResumeError("engine")
        return Had(self._text(_REASONING), self._text(_CONTENT))

    def read(self, parts: Iterable[bytes]) -> None:
        """Takes the bytes of a stream, up to the frame in which its engine gave it up."""
        reader = FrameReader()
        for part in parts:
            for frame in reader.feed(part):
                if not self._read(frame):
                    return

    def parse(self, parser: StreamParser) -> None:
        """Takes the content for the raw text of a model, of which the client has what a parser made of it."""
        text, self._texts = self._text(_CONTENT), {}
        delta, _ = RawChoice(parser, own_ids=False, reports=False).feed(text)
        self._note(delta)

    def note(self, chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> None:
        """Takes a chunk that goes out, and its choice."""
        self.envelope = self.envelope or {name: chunk[name] for name in _ENVELOPE if name in chunk}
        self._note(choice.get("delta") or {})
        self._add(_CONTENT, choice.get("text"))
        self.finished = self.finished or bool(choice.get("finish_reason"))

    def _note(self, delta: Mapping[str, Any]) -> None:
        if delta.get(ARGUMENTS):  # for which nobody has asked
            self._readable = False
        for name in TEXTS:
            self._add(name, delta.get(name))

    def _read(self, frame: Frame) -> bool:
        """Takes a frame; returns whether more can follow."""
        if (template := frame.template) is not None:
            self._add(template.place.field, frame.text)
            return True
        if error_around(frame.raw) is not None:
            return False
        data = frame.data()
        if data is None:
            self._readable = self._readable and frame.whole
            return True
        if is_done(data):
            return False
        try:
            chunk = frame.parsed(data)
        except EngineError:
            return False
        choice = first_choice(chunk)
        if given_up(chunk, choice) is not None:
            return False
        self.note(chunk, choice)
        return True

    def _text(self, name: str) -> str:
        return "".join(self._texts.get(name, ()))

    def _add(self, name: str, text: Any) -> None:
        if not isinstance(text, str) or not text:
            return
        if name not in TEXTS:
            self._readable = False
        elif name != _CONTENT:
            self.reasoning, name = name, _REASONING
        self._texts.setdefault(name, []).append(text)


class _Tokens(msgspec.Struct):
    tokens: list[int]


class _Text(msgspec.Struct):
    prompt: str


class Retold(NamedTuple):
    """An answer as tokens.

    Attributes:
        prompt: Ids of what is before it.
        ids: Its own.
    """

    prompt: list[int]
    ids: list[int]


async def retold(ask: Ask, prompt: bytes | list[int], text: str) -> Retold:
    """Returns the tokens of a prompt and of a text.

    A text that ends where a token ended has the same tokens again, as far as its model wrote the usual ones.

    Args:
        ask: Asks an engine.
        prompt: Its ids, or the body that asks for them.
        text: Behind it, raw.

    Raises:
        CannotResumeError: The engine does not know, or would read another text.
        GatewayError: It does not answer.
    """
    if any(end in text for end in TURN_ENDS):
        raise CannotResumeError("token")  # which a text would become that only spells it
    before = await _ids(ask, prompt) if isinstance(prompt, bytes) else prompt
    ids = await _ids(ask, msgspec.json.encode({"prompt": text, "add_special_tokens": False}))
    read = await _asked(ask, _DETOKENIZE, msgspec.json.encode({"tokens": ids}), _Text)
    if not before or not ids:
        raise CannotResumeError("no_ids")
    if _normal(read.prompt) != _normal(text):
        raise CannotResumeError("token")
    return Retold(before, ids)


def raw_of(had: Had, parser: StreamParser, *, splits: bool) -> str:
    """Returns what a model wrote of which a client has the parts, but for space that parsers leave out.

    Args:
        had: The parts.
        parser: Of the answer.
        splits: Whoever read the answer is known to have told reasoning and text apart.
    """
    machine = parser.machine
    inside, (opens, closes) = machine.thinking, machine.thinking_tags
    if not had.content.startswith("\n"):
        closes += "\n" * machine.newlines_behind_reasoning
    if not had.reasoning:
        return closes + had.content if inside and splits else had.content
    begin = had.reasoning if inside else opens + had.reasoning
    return begin + closes + had.content if had.content else begin


def prefix_of(parser: StreamParser | None, had: Had, text: str, tokens: Retold) -> KeptPrefix:
    """Returns what a client has, as the begin of the answer that goes on.

    Args:
        parser: Of the answer; new. None if nobody knows how its model writes.
        had: What the client has.
        text: The same, raw.
        tokens: The same.

    Raises:
        CannotResumeError: We read something else in it.
    """
    if parser is None:
        if had.reasoning:
            raise CannotResumeError("reasoning")
        return KeptPrefix(AsItIs(), {_CONTENT: text}, len(tokens.ids), len(tokens.prompt))
    reader = RawChoice(parser, own_ids=False, reports=False)
    delta, _ = reader.feed(text)
    for name, part in ((_REASONING, had.reasoning), (_CONTENT, had.content)):
        both = joined(part, delta.get(name, ""), parser.machine.held)
        if both is None or "tool_calls" in delta:
            raise CannotResumeError("passed" if had.reasoning else "reasoning")
        if both:
            delta[name] = both
    return KeptPrefix(reader, delta, len(tokens.ids), len(tokens.prompt))


async def _ids(ask: Ask, body: bytes) -> list[int]:
    return (await _asked(ask, _TOKENIZE, body, _Tokens)).tokens


async def _asked(ask: Ask, path: str, body: bytes, kind: type[T]) -> T:
    try:
        return msgspec.json.decode(await ask(path, body), type=kind)
    except MALFORMED as error:
        raise CannotResumeError("engine") from error


def _normal(text: str) -> str:
    """Returns a text without what tokenizers may change in it: blanks at its begin, and how accents are spelt."""
    return unicodedata.normalize("NFC", text).strip()


class ResumedStream(Check):
    """Makes what another engine goes on with the rest of the stream that the client has.

    Args:
        answer: What the client has, to which the stream adds.

    Attributes:
        failure: The engine's, where it gave the answer up.
    """

    exact = False

    def __init__(self, answer: PlainAnswer) -> None:
        self.over = False
        self.failure: EngineError | None = None
        self._answer = answer
        # What is kept of a chat answer comes again first: so many characters of each text are the client's already.
        had = answer.had if answer.chat else NOTHING_HAD
        self._ahead = {_REASONING: len(had.reasoning), _CONTENT: len(had.content)}

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with what is new in it."""
        if self.over:
            return ()
        data = frame.data() if frame.chunk is None else b""
        if data is None or is_done(data):
            return ()
        try:
            chunk = {**frame.parsed(data), **self._answer.envelope}
        except EngineError as error:
            self.failure, self.over = error, True
            return ()
        choice = first_choice(chunk)
        self.failure = given_up(chunk, choice)
        if self.failure is not None:
            self.over = True
            return ()
        if not choice:
            return (Frame.of(chunk),) if chunk.get("usage") else ()
        new = self._chat(choice) if self._answer.chat else self._completion(choice)
        if new is None:
            return ()
        self._answer.note(chunk, new)
        return (Frame.of({**chunk, "choices": [new]}),)

    def _chat(self, choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Returns what is new in a choice of a chat chunk; None if nothing is."""
        delta = {}
        for name, text in (choice.get("delta") or {}).items():
            if name == _CONTENT and (new := self._new(_CONTENT, text)):
                delta[_CONTENT] = new
            elif name in TEXTS and name != _CONTENT and (new := self._new(_REASONING, text)):
                delta[self._answer.reasoning] = new
        return {**choice, "delta": delta} if delta or choice.get("finish_reason") is not None else None

    def _completion(self, choice: Mapping[str, Any]) -> Mapping[str, Any] | None:
        """Does the same for a text completion."""
        new = self._new(_CONTENT, choice.get("text"))
        return {**choice, "text": new} if new or choice.get("finish_reason") is not None else None

    def _new(self, name: str, text: Any) -> str:
        """Returns what the client does not have of more of a text."""
        if not isinstance(text, str):
            return ""
        had = min(self._ahead[name], len(text))
        self._ahead[name] -= had
        return text[had:]


def first_choice(chunk: Mapping[str, Any]) -> Mapping[str, Any]:
    """Returns the first choice of a chunk; an empty one if there is none: a foreign engine may send anything."""
    choices = chunk.get("choices")
    choice = choices[0] if isinstance(choices, list) and choices else None
    if not isinstance(choice, dict) or not isinstance(choice.get("delta"), dict | None):
        return {}
    return choice if isinstance(choice.get("finish_reason"), str | None) else {}


def given_up(chunk: Mapping[str, Any], choice: Mapping[str, Any]) -> EngineError | None:
    """Returns why an engine gives an answer up; None for a part of it.

    Args:
        chunk: Of the answer.
        choice: The first one of the chunk.
    """
    reason = choice.get("finish_reason")
    if reason and not is_finish(reason):
        return error_in(chunk) or EngineError(f"The engine gave the answer up ({reason}).")
    return error_in(chunk)
