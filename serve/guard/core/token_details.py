"""Details of single tokens, such as log-probabilities: kept with the text or call that they belong to."""

from __future__ import annotations

from collections.abc import Iterable, Mapping
from typing import Any

from serve.guard.core.chunk import STOPS

# Members of a choice that hold an entry a token, or lists of them. In a stream they cover the chunk's own tokens.
MEMBERS = ("logprobs", "token_ids")
OF_A_WHOLE_CHUNK = (*MEMBERS, *STOPS)  # in a choice: not to be repeated with every piece of it

TokenDetails = Mapping[str, Any]  # the `MEMBERS` of one chunk's choice that say something


def details_of(choice: Mapping[str, Any]) -> TokenDetails | None:
    """Returns the details of a choice; None if it has none in OpenAI's shape: a foreign engine may send anything."""
    found = {name: value for name in MEMBERS if (value := choice.get(name)) and isinstance(value, dict | list)}
    return found or None


def without_details(choice: Mapping[str, Any]) -> dict[str, Any]:
    """Returns a choice with null in place of what is said of the chunk as a whole."""
    return {**choice, **{name: None for name in OF_A_WHOLE_CHUNK if name in choice}}


def joined(parts: Iterable[TokenDetails]) -> dict[str, Any]:
    """Returns the details of several chunks as those of one."""
    whole: dict[str, Any] = {}
    for part in parts:
        _add(whole, part)
    return whole


def of_last_characters(details: TokenDetails, count: int) -> TokenDetails:
    """Returns the details of the tokens in which the last characters of a chunk's text are.

    Args:
        details: Of a chunk.
        count: Of characters.
    """
    logprobs = details.get("logprobs")
    entries = logprobs.get("content") if isinstance(logprobs, dict) else None
    if not isinstance(entries, list):
        return details
    tokens = 0
    while count > 0 and tokens < len(entries):
        tokens += 1
        entry = entries[-tokens]
        token = entry.get("token") if isinstance(entry, dict) else None
        count -= len(token) if isinstance(token, str) else 0
    return _last(details, len(entries), tokens)


def _last(details: TokenDetails, of: int, count: int) -> TokenDetails:
    """Returns the details with the last `count` members of every list that has `of` of them."""

    def shortened(value: Any) -> Any:
        if isinstance(value, Mapping):
            return {name: shortened(member) for name, member in value.items()}
        return value[of - count :] if isinstance(value, list) and len(value) == of else value

    return {name: shortened(value) for name, value in details.items()}


def _add(whole: dict[str, Any], part: Mapping[str, Any]) -> None:
    """Adds to the lists of `whole`; any other member is the latest one that is not null."""
    for name, value in part.items():
        if isinstance(value, dict):
            inner = whole.get(name)
            if not isinstance(inner, dict):
                inner = whole[name] = {}
            _add(inner, value)
        elif isinstance(value, list):
            before = whole.get(name)
            if isinstance(before, list):
                before += value
            else:
                whole[name] = list(value)
        elif value is not None or name not in whole:
            whole[name] = value
