"""The JSON that a request wants: by its `response_format`, or by vLLM's own `structured_outputs`."""

import msgspec
from msgspec import Raw

from serve.request.completion import MALFORMED, NONE, CompletionRequest, Format, JsonSchema


class _Asked(msgspec.Struct, gc=False):
    json: Raw = NONE
    json_object: Raw = NONE


_asked = msgspec.json.Decoder(_Asked)
_text = msgspec.json.Decoder(str)
_no_value = msgspec.json.Decoder(Raw)


def format_of(request: CompletionRequest) -> Format | None:
    """Returns the format that the answer must have, if any.

    vLLM makes `structured_outputs` of a JSON `response_format`, so that both are judged, bounded and routed alike.
    """
    form = request.response_format
    if request.structured_outputs is NONE or (form is not None and form.type != "text"):
        return form
    try:
        return _json_of(_asked.decode(request.structured_outputs)) or form
    except MALFORMED:  # the engine will say what it thinks of it
        return form


def _json_of(asked: _Asked) -> Format | None:
    schema = asked.json
    if bytes(schema).startswith(b'"'):
        schema = _no_value.decode(_text.decode(schema))
    if bytes(schema).startswith(b"{"):
        return Format("json_schema", JsonSchema(strict=True, schema=schema))
    return Format("json_object") if bytes(asked.json_object) == b"true" else None
