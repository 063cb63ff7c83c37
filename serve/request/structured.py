"""The JSON that a request wants: by its `response_format`, or by vLLM's own `structured_outputs`."""

import msgspec
from msgspec import Raw

from serve.request.completion import MALFORMED, NONE, CompletionRequest, Format, JsonSchema


class _Asked(msgspec.Struct, gc=False):
    json: Raw = NONE
    json_object: Raw = NONE


_asked = msgspec.json.Decoder(_Asked)
_text = msgspec.json.Decoder(str)
_object = msgspec.json.Decoder(dict[str, Raw])


def format_of(request: CompletionRequest) -> Format | None:
    """Returns the format that the answer must have, if any.

    vLLM makes `structured_outputs` of a JSON `response_format`, so that both are judged and routed alike.
    """
    form = request.response_format
    if request.structured_outputs is NONE or (form is not None and form.type != "text"):
        return form
    schema = schema_of(request.structured_outputs)
    try:
        _object.decode(schema)
    except MALFORMED:  # the engine will say what it thinks of it
        return Format("json_object") if bytes(_read(request.structured_outputs).json_object) == b"true" else form
    return Format("json_schema", JsonSchema(strict=True, schema=Raw(schema)))


def schema_of(structured_outputs: Raw) -> bytes:
    """Returns what stands for a schema, if in a string, and whether or not it is one; `null` if nothing does."""
    schema = bytes(_read(structured_outputs).json)
    try:
        return _text.decode(schema).encode() if schema.startswith(b'"') else schema
    except MALFORMED:
        return bytes(NONE)


def _read(structured_outputs: Raw) -> _Asked:
    try:
        return _asked.decode(structured_outputs)
    except MALFORMED:
        return _Asked()
