"""The conversation's history in a request's body: repaired where an engine would choke on it."""

from typing import Literal

import msgspec

from serve.guard.core import Repair, repair_history
from serve.request.rewrite import with_member


class _Body(msgspec.Struct):
    messages: list[msgspec.Raw] | None = None


_body = msgspec.json.Decoder(_Body)
_CALLS = b"tool_call"  # in the key of a call and of its result, unless spelt with escapes; then nothing is repaired


def repaired(body: bytes, mode: Literal["off", "warn", "fix"], *, kimi_ids: bool) -> tuple[bytes, Repair]:
    """A body that engines accept, and what was found in it.

    A history in which nothing is wrong comes back as the very same bytes; in another one only the messages with the
    calls at fault, and the results that refer to them, are written anew.

    Args:
        body: A JSON object that `serve.features.extract` has accepted.
        mode: `off`, `warn` (find, change nothing) or `fix`.
        kimi_ids: Whether ids must have the form `functions.NAME:INDEX`.
    """
    raw = _body.decode(body).messages if mode != "off" and _CALLS in body else None
    if not raw:
        return body, Repair(())
    messages = [msgspec.json.decode(each) if _CALLS in bytes(each) else None for each in raw]
    found = repair_history(messages, mode, kimi_ids=kimi_ids)
    if found.messages is messages:
        return body, found
    written = [
        each if new is old else msgspec.Raw(msgspec.json.encode(new))
        for each, old, new in zip(raw, messages, found.messages, strict=True)
    ]
    return with_member(body, "messages", msgspec.json.encode(written)), found
