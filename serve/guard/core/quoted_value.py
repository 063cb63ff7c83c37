"""Takes the quotes off a value that a model wrote as a text of its JSON: `"edits": "[{...}]"`."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator

from serve.parsing.strict_json import loads

# What a text fails where the schema wants something else. Where it fails its pattern, say, the schema wants a text.
_OF_TYPES = frozenset({"type", "anyOf", "oneOf", "enum", "const"})
ALL_OF_IT = "$: type"
"""The mismatch of a document that is a text itself."""
_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


def unquoted(text: str, mismatch: str) -> str | None:
    """Returns a document with the value in place of the text that fails its schema; None if that text is no JSON.

    Nothing else of the document changes.

    Args:
        text: The document, valid JSON.
        mismatch: Where and by which keyword it fails, as of `Schema.mismatch`.
    """
    where, _, keyword = mismatch.rpartition(": ")
    span = _span(text, where) if keyword in _OF_TYPES else None
    if span is None or text[span[0]] != '"':
        return None
    start, end = span
    value_text = loads(text[start:end])
    try:
        value = loads(value_text)
    except ValueError:
        return None
    return None if isinstance(value, str) else f"{text[:start]}{value_text.strip()}{text[end:]}"


def _span(text: str, where: str) -> tuple[int, int] | None:
    """Returns where the value at a path such as `$.edits[0].text` begins and ends; None if the path leads nowhere."""
    path, start, end = "$", _behind_space(text, 0), len(text)
    while path != where:
        steps = _members(text, start) if text[start] in "{[" else ()
        inner = next(
            (each for each in steps if f"{where}.".startswith((f"{path}{each[0]}.", f"{path}{each[0]}["))), None
        )
        if inner is None:
            return None
        step, start, end = inner
        path += step
    return start, end


def _members(text: str, start: int) -> Iterator[tuple[str, int, int]]:
    """Yields the members of the object or list that begins at a place: the step of a path, begin and end."""
    is_object = text[start] == "{"
    place, number = _behind_space(text, start + 1), 0
    while text[place] not in "}]":
        step = f"[{number}]"
        if is_object:
            key, place = _decoder.raw_decode(text, place)
            step = f".{key}"
            place = _behind_space(text, _behind_space(text, place) + 1)
        _, end = _decoder.raw_decode(text, place)
        yield step, place, end
        place = _behind_space(text, end)
        if text[place] == ",":
            place = _behind_space(text, place + 1)
        number += 1


def _behind_space(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]
