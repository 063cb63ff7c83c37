"""Anthropic's Messages API."""

from serve.dialects.count_tokens import counting
from serve.dialects.dialect import Dialect
from serve.dialects.messages.request import decode, decode_count
from serve.dialects.messages.response import encode_error, encode_refusal, encode_whole
from serve.dialects.messages.stream import StreamEncoder

__all__ = ["COUNT_TOKENS", "ID_HEADER", "MESSAGES", "PATH", "encode_refusal"]

PATH = "/v1/messages"
ID_HEADER = "request-id"

MESSAGES = Dialect("messages", decode, StreamEncoder, encode_whole, encode_error, ID_HEADER)
COUNT_TOKENS = counting(MESSAGES, "count_tokens", decode_count)
