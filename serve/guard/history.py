"""Repairs the conversation in a request's body where an engine would choke on it."""

from collections.abc import Generator
from typing import Literal

import msgspec
from msgspec import Raw, Struct

from serve.guard.core import HistoryRepair
from serve.guard.core.history import ID_FORMS, id_text
from serve.http1.turns import LONG_RAW_BYTES, in_slices
from serve.request.completion import MALFORMED, NONE, holds, not_json
from serve.request.long_json import decode
from serve.request.patch import BodyPatch, array_of

_CALLS = b"tool_call"  # in the keys of calls and of their results; a body that escapes them is not repaired
_TOOL = b"tool"  # in them as well, and in the role of a result
# Of names and texts in a message or call, beside those in its calls or arguments: more are made to be slow to rewrite.
_MOST_QUOTES = 10_000


class _Body(Struct, gc=False):
    messages: list[Raw] | None = None


class _Message(Struct, gc=False):
    role: str | None = None
    tool_calls: list[Raw] | None = None
    tool_call_id: str | int | None = None


class _Function(Struct, gc=False):
    name: str = ""
    arguments: Raw = NONE


class _Call(Struct, gc=False):
    function: _Function
    id: str | int | None = None


class _Parts(Struct, gc=False):
    function: Raw


_body = msgspec.json.Decoder(_Body)
_message = msgspec.json.Decoder(_Message)
_call = msgspec.json.Decoder(_Call)
_parts = msgspec.json.Decoder(_Parts)
_text = msgspec.json.Decoder(str)


async def repair_history(
    patch: BodyPatch, body: bytes, mode: Literal["off", "warn", "fix"], grammar: str
) -> HistoryRepair:
    """Repairs earlier messages, and returns what was wrong with them.

    Only the malformed calls, and the ids of results that refer to them, are encoded again. Other tasks run in between.
    The patch gets the repaired messages, but for mode `warn`. The model's grammar says which form ids must have.

    Raises:
        InvalidRequestError: An earlier call is not JSON in UTF-8.
    """
    repair = HistoryRepair(ID_FORMS.get(grammar))
    if mode == "off":
        return repair
    try:
        messages = await in_slices(_repair_messages(body, repair), aside=len(body) >= LONG_RAW_BYTES)
    except MALFORMED as error:  # in a part that nobody has read before
        raise not_json(error) from error
    if messages and mode == "fix":
        patch.set("messages", messages)
    return repair


def _repair_messages(body: bytes, repair: HistoryRepair) -> Generator[None, None, bytes]:
    """Returns the messages, repaired; nothing if they are clean."""
    if not holds(body, _CALLS):
        return b""
    messages = decode(_body, body).messages or []
    yield from _repair(messages, repair)
    return b"" if repair.clean else array_of(messages)


def _repair(messages: list[Raw], repair: HistoryRepair) -> Generator[None, None, None]:
    """Repairs messages in place; yields after each call and each message."""
    found: list[tuple[int, _Message, list[_Call | None]]] = []
    for index, raw in enumerate(messages):
        if not holds(source := bytes(raw), _TOOL):
            continue
        yield
        try:
            message = decode(_message, source)
        except msgspec.ValidationError:
            continue  # of a shape that is not OpenAI's
        if message.tool_calls or message.role == "tool":
            calls = yield from _decoded(source, message)
            _note(message, calls, repair)
            found.append((index, message, calls))
    last = -1
    for index, message, calls in found:
        if message.tool_calls:
            if repair.history_ids is not None and index != last + 1:
                repair.history_ids.begin_turn()
            last = index
            if (yield from _repair_calls(message.tool_calls, calls, repair)):
                source = bytes(messages[index])
                messages[index] = Raw(_with_member(source, "tool_calls", msgspec.json.encode(message.tool_calls)))
        else:
            call_id = repair.result_id(message.tool_call_id)
            if call_id != message.tool_call_id:
                source = bytes(messages[index])
                messages[index] = Raw(_with_member(source, "tool_call_id", msgspec.json.encode(call_id)))


def _decoded(source: bytes, message: _Message) -> Generator[None, None, list[_Call | None]]:
    """Returns the calls of a message; None for each that is to stay as it is."""
    raw_calls = message.tool_calls or []
    sources = list(map(bytes, raw_calls))
    if _quotes(source) - sum(map(_quotes, sources)) > _MOST_QUOTES:
        return [None] * len(sources)
    calls: list[_Call | None] = []
    for each in sources:
        yield
        try:
            calls.append(None if _quotes(each) > _MOST_QUOTES else _call.decode(each))
        except msgspec.ValidationError:
            calls.append(None)  # of a shape that is not OpenAI's
    return calls


def _note(message: _Message, calls: list[_Call | None], repair: HistoryRepair) -> None:
    if repair.history_ids is None:
        return
    for call in calls:
        if call is not None:
            repair.history_ids.note_call(id_text(call.id), call.function.name)
    if not message.tool_calls:
        repair.history_ids.note_result(id_text(message.tool_call_id))


def _repair_calls(
    raw_calls: list[Raw], calls: list[_Call | None], repair: HistoryRepair
) -> Generator[None, None, bool]:
    """Repairs the calls of one message in place; returns whether there was anything to repair."""
    changed = False
    for place, call in enumerate(calls):
        yield
        if call is not None and (repaired := _repaired(raw_calls[place], call, repair)) is not raw_calls[place]:
            raw_calls[place] = repaired
            changed = True
    return changed


def _repaired(raw: Raw, call: _Call, repair: HistoryRepair) -> Raw:
    given = call.function.arguments
    arguments = _text.decode(given) if bytes(memoryview(given)[:1]) == b'"' else None  # some clients send an object
    plain = {"id": call.id, "function": {"name": call.function.name, "arguments": arguments}}
    repaired = repair.call(plain)
    if repaired is plain:
        return raw
    source = bytes(raw)
    if repaired["function"] is not plain["function"]:
        function = bytes(_parts.decode(source).function)
        mended = _with_member(function, "arguments", msgspec.json.encode(repaired["function"]["arguments"]))
        source = _with_member(source, "function", mended)
    if repaired["id"] != call.id:
        source = _with_member(source, "id", msgspec.json.encode(repaired["id"]))
    return Raw(source)


def _quotes(source: bytes) -> int:
    """Returns about how many quotes begin or end a text in JSON; those within texts are escaped."""
    return source.count(b'"') - source.count(b'\\"')


def _with_member(source: bytes, name: str, value: bytes) -> bytes:
    """Returns a message, call or function with one member replaced."""
    patch = BodyPatch()
    patch.set(name, value)
    return patch.apply(source)
