"""Pieces of chat bodies that every dialect puts together, and what stands in the place of content that no engine reads:
PDFs and other files, files that are stored elsewhere, parts of unknown kinds.
"""

import re
from base64 import b64decode
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from typing import Any

from serve.errors import InvalidRequestError

# Stands in for the result of a call whose client sent none: chat templates want one after every call.
MISSING_RESULT = "The result of this call was not recorded."
# The members of a request for a stream; without usage a dialect would have to estimate the tokens.
STREAMED: dict[str, Any] = {"stream": True, "stream_options": {"include_usage": True}}
_TEXT_TYPE = re.compile(
    r"text/.+|application/(?:.+\+)?(?:json|jsonl|x-ndjson|xml|yaml|x-yaml|toml|javascript|sql|x-sh)"
)


def chat_role(role: Any, begun: bool) -> Any:
    """Returns the role under which chat has a message: a later one of the system becomes the user's.

    Templates refuse it in its own role, and moved to the front it would change the prefix that engines have in their
    cache.

    Args:
        role: The client's, known or not.
        begun: Something else than the system's messages has come before.
    """
    if role in ("system", "developer"):
        return "user" if begun else "system"
    return role


def taken_ids(messages: Iterable[Mapping[str, Any]]) -> frozenset[str]:
    """Returns the ids of all calls in a conversation, which is of our own making."""
    return frozenset([call["id"] for message in messages for call in message.get("tool_calls", ())])


def text_part(text: str) -> dict[str, Any]:
    """Returns a text as part of a chat message."""
    return {"type": "text", "text": text}


@dataclass(frozen=True, slots=True)
class Unreadable:
    """Decides what stands in the place of such content (docs/adr/0058).

    Attributes:
        asked: Place of what the user says now; empty if the request ends with anything else.
        dropped: Gets the names of what is left out.
    """

    asked: str = ""
    dropped: list[str] = field(default_factory=list)

    def note(self, where: str, name: str, what: str, error: InvalidRequestError) -> dict[str, Any]:
        """Returns a part that tells the model what is missing.

        Args:
            where: Place of the content.
            name: Of the content, in the list of what was dropped.
            what: The content, as a model may read it.
            error: For whoever asks about it now.

        Raises:
            InvalidRequestError: `error`: without the content, this would be another question than the user's.
        """
        if self.asked and where.startswith(self.asked):
            raise error
        self.dropped.append(name)
        return text_part(f"[{what} was here and can't be read. A tool or the user may provide its text.]")


def text_of(media_type: Any, data: Any) -> str | None:
    """Returns the text of a file that came as base64; None if it is not one of text in UTF-8."""
    if not isinstance(media_type, str) or not isinstance(data, str):
        return None
    if not _TEXT_TYPE.fullmatch(media_type.partition(";")[0].strip().lower()):
        return None
    try:
        return b64decode("".join(data.split()), validate=True).decode()
    except ValueError:
        return None
