"""OpenAI's Responses API."""

import time
from collections.abc import Mapping
from typing import Any

import msgspec

from serve.dialects.count_tokens import counting
from serve.dialects.dialect import Dialect, Identity
from serve.dialects.responses.request import ResponsesMemo, decode, decode_count
from serve.dialects.responses.response import ResponseObject, encode_error, whole_response
from serve.dialects.responses.stream import ResponsesEncoder

__all__ = ["INPUT_TOKENS", "RESPONSES"]


def _stream_encoder(memo: ResponsesMemo, identity: Identity) -> ResponsesEncoder:
    return ResponsesEncoder(ResponseObject(memo, identity, int(time.time())))


def _encode_whole(completion: Mapping[str, Any], memo: ResponsesMemo, identity: Identity) -> bytes:
    return msgspec.json.encode(whole_response(completion, ResponseObject(memo, identity, int(time.time()))))


RESPONSES = Dialect(
    "responses",
    decode,
    _stream_encoder,
    _encode_whole,
    encode_error,
    fails_in_stream=lambda failure: bool(failure.overflow),
)
INPUT_TOKENS = counting(RESPONSES, "input_tokens", decode_count, object="response.input_tokens")
