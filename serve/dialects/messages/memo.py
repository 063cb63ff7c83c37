"""The facts of a request that the encoder needs, and the ids of calls in both directions."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from dataclasses import dataclass

_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
_CODED = "toolu_sg_"


@dataclass(frozen=True, slots=True)
class MessagesMemo:
    """The facts of a request that the encoder needs.

    Attributes:
        prompt_bytes: Size of the chat body.
        thinking: True if the client enabled thinking: only such a one expects blocks of it.
        omitted: True if it wants those blocks without their text.
        max_tokens: The length that the answer may have; 0 if that is not known.
        taken_ids: Ids of the calls in the conversation so far.
    """

    prompt_bytes: int
    thinking: bool = False
    omitted: bool = False
    max_tokens: int = 0
    taken_ids: frozenset[str] = frozenset()


def client_id(call_id: str) -> str:
    """Returns a call's id as clients accept it: Kimi's `functions.NAME:0` holds what they refuse."""
    if _PLAIN_ID.fullmatch(call_id) and not call_id.startswith(_CODED):
        return call_id
    return _CODED + urlsafe_b64encode(call_id.encode("utf-8", "replace")).rstrip(b"=").decode()


def engine_id(given: str) -> str:
    """Returns the id that `client_id` was given; any other id as it is."""
    if not given.startswith(_CODED):
        return given
    coded = given[len(_CODED) :]
    try:
        return urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except (binascii.Error, ValueError):
        return given
