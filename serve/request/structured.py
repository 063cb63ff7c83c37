"""What vLLM's `structured_outputs` asks for, where that is JSON: vLLM makes the same of a `response_format`."""

import msgspec
from msgspec import Raw

from serve.request.completion import MALFORMED, NONE


class _Asked(msgspec.Struct, gc=False):
    json: Raw = NONE
    json_object: Raw = NONE


_asked = msgspec.json.Decoder(_Asked)
_text = msgspec.json.Decoder(str)


def form_of(structured_outputs: Raw) -> str | None:
    """Returns the type of the `response_format` that asks for the same, if there is one."""
    asked = _read(structured_outputs)
    if bytes(asked.json)[:1] in (b"{", b'"'):
        return "json_schema"
    return "json_object" if bytes(asked.json_object) == b"true" else None


def schema_of(structured_outputs: Raw) -> bytes:
    """Returns the schema, which may stand in a string; `null` if there is none."""
    schema = bytes(_read(structured_outputs).json)
    try:
        return _text.decode(schema).encode() if schema.startswith(b'"') else schema
    except MALFORMED:
        return bytes(NONE)


def _read(structured_outputs: Raw) -> _Asked:
    try:
        return _asked.decode(structured_outputs)
    except MALFORMED:  # the engine will say what it thinks of it
        return _Asked()
