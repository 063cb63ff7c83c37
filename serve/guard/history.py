"""Repairs the conversation in a request's body where an engine would choke on it."""

from collections.abc import Generator
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from serve.guard.core import HistoryRepair
from serve.guard.slices import LONG_RAW_BYTES, in_slices
from serve.request.completion import MALFORMED, NONE, not_json, with_member

_CALLS = b"tool_call"  # in the keys of calls and of their results; a body that escapes them is not repaired
# Of names and texts in a message or call, beside those in its calls or arguments: more are made to be slow to rewrite.
_MOST_QUOTES = 10_000


class _Body(Struct, gc=False):
    messages: list[Raw] | None = None


class _Message(Struct, gc=False):
    role: str | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | None = None


class _Function(Struct, gc=False):
    name: str = ""
    arguments: Raw = NONE


class _Call(Struct, gc=False):
    function: _Function
    id: str | None = None


class _Parts(Struct, gc=False):
    function: Raw


_body = msgspec.json.Decoder(_Body)
_message = msgspec.json.Decoder(_Message)
_call = msgspec.json.Decoder(_Call)
_parts = msgspec.json.Decoder(_Parts)
_text = msgspec.json.Decoder(str)


async def repair_body(
    body: bytes, mode: Literal["off", "warn", "fix"], *, kimi_ids: bool
) -> tuple[bytes, HistoryRepair]:
    """Returns a body that engines accept, and what was wrong with it.

    A clean history comes back as the very same bytes. Otherwise only the malformed calls, and the ids of results that
    refer to them, are encoded again. Other tasks run in between.

    Args:
        body: A JSON object that the gateway has parsed as a request.
        mode: `off`, `warn` (report, change nothing) or `fix`.
        kimi_ids: Whether ids must have the form `functions.NAME:INDEX`.

    Raises:
        InvalidRequestError: An earlier call is not JSON in UTF-8.
    """
    repair = HistoryRepair(kimi_ids=kimi_ids)
    if mode == "off" or _CALLS not in body:
        return body, repair
    try:
        steps = _repair_messages(body, repair, rewrite=mode == "fix")
        return await in_slices(steps, aside=len(body) >= LONG_RAW_BYTES), repair
    except MALFORMED as error:  # in a part that nobody has read before
        raise not_json(error) from error


def _repair_messages(body: bytes, repair: HistoryRepair, *, rewrite: bool) -> Generator[None, None, bytes]:
    """Returns the body with its messages repaired: the very same one if they are clean, or only counted."""
    messages = _body.decode(body).messages or []
    yield from _repair(messages, repair)
    if repair.clean or not rewrite:
        return body
    return with_member(body, "messages", msgspec.json.encode(messages))


def _repair(messages: list[Raw], repair: HistoryRepair) -> Generator[None, None, None]:
    """Repairs messages in place; yields after each call and each message."""
    for index, raw in enumerate(messages):
        if _CALLS not in (source := bytes(raw)):
            continue
        yield
        try:
            message = _message.decode(source)
        except msgspec.ValidationError:
            continue  # of a shape that is not OpenAI's
        if message.tool_calls:
            if (yield from _repair_calls(source, message.tool_calls, repair)):
                messages[index] = Raw(with_member(source, "tool_calls", msgspec.json.encode(message.tool_calls)))
        elif message.role == "tool" and message.tool_call_id is not None:
            call_id = repair.result_id(message.tool_call_id)
            if call_id != message.tool_call_id:
                messages[index] = Raw(with_member(source, "tool_call_id", msgspec.json.encode(call_id)))


def _repair_calls(source: bytes, calls: list[Raw], repair: HistoryRepair) -> Generator[None, None, bool]:
    """Repairs the calls of one message in place; returns whether there was anything to repair."""
    if _quotes(source) - sum(map(_quotes, map(bytes, calls))) > _MOST_QUOTES:
        return False
    changed = False
    for place, call in enumerate(calls):
        yield
        if (repaired := _repaired(call, repair)) is not call:
            calls[place] = repaired
            changed = True
    return changed


def _repaired(raw: Raw, repair: HistoryRepair) -> Raw:
    source = bytes(raw)
    if _quotes(source) > _MOST_QUOTES:
        return raw
    try:
        call = _call.decode(source)
    except msgspec.ValidationError:
        return raw  # of a shape that is not OpenAI's
    given = call.function.arguments
    arguments = _text.decode(given) if bytes(memoryview(given)[:1]) == b'"' else None  # some clients send an object
    plain = {"id": call.id, "function": {"name": call.function.name, "arguments": arguments}}
    repaired = repair.call(plain)
    if repaired is plain:
        return raw
    if repaired["function"] is not plain["function"]:
        function = bytes(_parts.decode(source).function)
        mended = with_member(function, "arguments", msgspec.json.encode(repaired["function"]["arguments"]))
        source = with_member(source, "function", mended)
    if repaired["id"] != call.id:
        source = with_member(source, "id", msgspec.json.encode(repaired["id"]))
    return Raw(source)


def _quotes(source: bytes) -> int:
    """Returns about how many quotes begin or end a text in JSON; those within texts are escaped."""
    return source.count(b'"') - source.count(b'\\"')
