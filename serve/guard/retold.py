"""The tokens of a plain answer, made of its text: nobody has asked its engine for their ids."""

from __future__ import annotations

import unicodedata
from typing import NamedTuple, TypeVar

import msgspec

from serve.guard.cut import Had, joined
from serve.parsing import StreamParser
from serve.proxy.attempts import Ask
from serve.request.completion import MALFORMED
from serve.request.resuming import CannotResumeError
from serve.stream.continuation import TURN_ENDS, AsItIs, KeptPrefix
from serve.stream.parsed import TEXT, RawChoice

T = TypeVar("T", bound=msgspec.Struct)
_TOKENIZE, _DETOKENIZE = "/tokenize", "/detokenize"


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
        return KeptPrefix(AsItIs(), {TEXT: text}, len(tokens.ids), len(tokens.prompt))
    reader = RawChoice(parser, own_ids=False, reports=False)
    delta, _ = reader.feed(text)
    for name, part in (("reasoning", had.reasoning), (TEXT, had.content)):
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
