"""The name under which an engine reads the reasoning of earlier turns: servers differ, and ignore any other."""

from typing import Literal

import msgspec
from msgspec import Raw

ReasoningField = Literal["reasoning", "reasoning_content"]

_body = msgspec.json.Decoder(dict[str, Raw])
_messages = msgspec.json.Decoder(list[dict[str, Raw]])
_OTHER: dict[ReasoningField, ReasoningField] = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}


def with_reasoning_as(body: bytes, name: ReasoningField) -> bytes:
    """Returns a chat body whose messages hold their reasoning under one name; every other value stays as it was sent.

    Args:
        body: A body that was parsed before. One that names reasoning nowhere, and so most, is returned as it is.
        name: The member for it. A message that has it already keeps both.
    """
    other = _OTHER[name]
    if b'"%b"' % other.encode() not in body:
        return body
    members = _body.decode(body)
    if "messages" not in members:
        return body
    try:
        messages = _messages.decode(members["messages"])
    except msgspec.ValidationError:
        return body  # a prompt in place of messages, for the engine to judge
    for message in messages:
        if other in message and name not in message:
            message[name] = message.pop(other)
    return msgspec.json.encode({**members, "messages": messages})
