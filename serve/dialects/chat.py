"""Pieces of chat bodies that every dialect puts together."""

from collections.abc import Iterable, Mapping
from typing import Any

# Stands in for the result of a call whose client sent none: chat templates want one after every call.
MISSING_RESULT = "The result of this call was not recorded."
# The members of a request for a stream; without usage a dialect would have to estimate the tokens.
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}


def taken_ids(messages: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the ids of all calls in a conversation, which is of our own making."""
    return frozenset([call["id"] for message in messages for call in message.get("tool_calls", ())])


def text_part(text: str) -> dict[str, Any]:
    """Returns a text as part of a chat message."""
    return {"type": "text", "text": text}
