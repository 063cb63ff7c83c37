"""Anthropic's Messages API."""

from serve.dialects.dialect import Dialect
from serve.dialects.messages.decode import decode
from serve.dialects.messages.encode import encode_error, encode_whole
from serve.dialects.messages.stream import StreamEncoder

MESSAGES = Dialect("messages", decode, StreamEncoder, encode_whole, encode_error, "request-id")
