"""Repairs the conversation in a request's body where an engine would choke on it."""

from typing import Literal

import msgspec

from serve.guard.core import Repair, repair_history
from serve.request.completion import with_member


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw] | None = None


_body = msgspec.json.Decoder(_Body)
_CALLS = b"tool_call"  # in the keys of calls and of their results; a body that escapes them is not repaired


def repair_body(body: bytes, mode: Literal["off", "warn", "fix"], *, kimi_ids: bool) -> tuple[bytes, Repair]:
    """Returns a body that engines accept, and what was wrong with it.

    A clean history comes back as the very same bytes. Otherwise only the messages with malformed calls, and the results
    that refer to them, are encoded again.

    Args:
        body: A JSON object that the gateway has parsed as a request.
        mode: `off`, `warn` (report, change nothing) or `fix`.
        kimi_ids: Whether ids must have the form `functions.NAME:INDEX`.
    """
    raw = _body.decode(body).messages if mode != "off" and _CALLS in body else None
    if not raw:
        return body, Repair(())
    messages = [msgspec.json.decode(message) if _CALLS in bytes(message) else None for message in raw]
    repair = repair_history(messages, mode, kimi_ids=kimi_ids)
    if repair.messages is messages:
        return body, repair
    encoded = [
        original if new is old else msgspec.Raw(msgspec.json.encode(new))
        for original, old, new in zip(raw, messages, repair.messages, strict=True)
    ]
    return with_member(body, "messages", msgspec.json.encode(encoded)), repair
