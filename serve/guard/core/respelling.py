"""Other readings of a value that fails its schema: the same in another spelling, such as a list in quotes.

Nothing else of the text changes. Whether a reading is right, the schema says.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import NamedTuple

from serve.parsing.arguments import means_nothing
from serve.parsing.strict_json import loads, with_escapes

# What a text fails where the schema wants something else. Where it fails its pattern, say, the schema wants a text.
_OF_TYPES = frozenset({"type", "anyOf", "oneOf", "enum", "const"})
_OF_NAMES = frozenset({"required", "additionalProperties"})
WHOLE = "$"
# Keys that models and parsers put around the arguments, and those that they put beside them there.
WRAPPERS = frozenset({"arguments", "parameters", "parameter", "input", "args", "kwargs", "params", "properties"})
_BESIDE = frozenset({"name", "type"})
_AS_PYTHON_WRITES = {"True": "true", "False": "false"}
_SPACE = re.compile(r"[ \t\r\n]*")
_decoder = json.JSONDecoder()


class _Member(NamedTuple):
    """The part of a JSON text that is a value, or a member of an object or a list.

    Attributes:
        step: Of a path, such as `.text` or `[0]`.
        begin: Where it begins, with its key.
        start: Where its value begins.
        end: Where it ends.
    """

    step: str
    begin: int
    start: int
    end: int


def respelt(text: str, mismatch: str) -> Iterator[str]:
    """Yields a JSON text with other readings of the value that fails its schema, the surest first.

    A text may be the value that it holds, or one of an enum in another case; a number or an object may be the text that
    it is written as, unlike a list, which may be its lines or words; nothing may stand for a member that is not there,
    and an object around all arguments for these.

    Args:
        text: Valid JSON.
        mismatch: As of `Schema.mismatch`.
    """
    where, _, keyword = mismatch.rpartition(": ")
    member = _member(text, where)
    if member is None:
        return
    before, written, behind = text[: member.start], text[member.start : member.end], text[member.end :]
    value = loads(written)
    if keyword in _OF_TYPES:
        yield from (f"{before}{each}{behind}" for each in _readings(written, value, keyword))
    if member.step.startswith(".") and (value is None or (isinstance(value, str) and means_nothing(value))):
        yield _without(text, member)
    if where == WHOLE and keyword in _OF_NAMES and isinstance(value, dict) and len(WRAPPERS & value.keys()) == 1:
        inner = {each.step[1:]: each for each in _members(text, member.start)}
        key = next(iter(WRAPPERS & value.keys()))
        if value.keys() - {key} <= _BESIDE and isinstance(value[key], dict):
            yield text[inner[key].start : inner[key].end]


def _readings(written: str, value: object, keyword: str) -> Iterator[str]:
    """Yields what may be meant by a value that is written so."""
    if not isinstance(value, str):
        if not isinstance(value, list | None):
            yield json.dumps(written, ensure_ascii=False)
        return
    held = _AS_PYTHON_WRITES.get(value) or with_escapes(value).strip()
    try:
        if not isinstance(loads(held), str):
            yield held
    except ValueError:
        cases = (value.lower(), value.upper(), value.capitalize()) if keyword != "type" else ()
        yield from (json.dumps(each, ensure_ascii=False) for each in cases)


def _without(text: str, member: _Member) -> str:
    """Returns an object's text without one of its members."""
    behind = _behind_space(text, member.end)
    if text[behind] == ",":
        return text[: member.begin] + text[_behind_space(text, behind + 1) :]
    return text[: member.begin].rstrip().removesuffix(",") + text[behind:]


def _member(text: str, where: str) -> _Member | None:
    """Returns the value at a path such as `$.edits[0].text`; None if the path leads nowhere."""
    start = _behind_space(text, 0)
    path, member = WHOLE, _Member("", start, start, len(text))
    while path != where:
        steps = _members(text, member.start) if text[member.start] in "{[" else ()
        inner = next(
            (each for each in steps if f"{where}.".startswith((f"{path}{each.step}.", f"{path}{each.step}["))), None
        )
        if inner is None:
            return None
        member = inner
        path += member.step
    return member


def _members(text: str, start: int) -> Iterator[_Member]:
    """Yields the members of the object or list that begins at a place."""
    is_object = text[start] == "{"
    place, number = _behind_space(text, start + 1), 0
    while text[place] not in "}]":
        begin, step = place, f"[{number}]"
        if is_object:
            key, place = _decoder.raw_decode(text, place)
            step = f".{key}"
            place = _behind_space(text, _behind_space(text, place) + 1)
        _, end = _decoder.raw_decode(text, place)
        yield _Member(step, begin, place, end)
        place = _behind_space(text, end)
        if text[place] == ",":
            place = _behind_space(text, place + 1)
        number += 1


def _behind_space(text: str, place: int) -> int:
    return _SPACE.match(text, place).end()  # type: ignore[union-attr]
