"""JSON as its standard defines it; Python's own decoder also accepts NaN and Infinity."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn

_LONG = 64 * 1024  # characters; fewer are parsed in milliseconds whatever they hold
# Many times what a model says in one answer. Building as many values takes some 20 ms, during which nothing else runs.
_MOST_BRACKETS = 60_000
_MOST_SIGNS = 300_000


def loads(text: str) -> Any:
    """Parses one JSON document.

    Raises:
        ValueError: The text is not JSON, nested too deeply to parse, or holds too many values.
    """
    if len(text) > _LONG and _is_dense(text):
        raise ValueError("too many values")
    try:
        return _decoder.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def _is_dense(text: str) -> bool:
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        return True
    return text.count(",") + text.count(":") > _MOST_SIGNS


def has_half_character(text: str, value: Any) -> bool:
    """Returns whether a string in a document holds a lone surrogate, which cannot be encoded.

    Args:
        text: The document's JSON.
        value: The same document, parsed.
    """
    if "\\u" not in text and (text.isascii() or _SURROGATE.search(text) is None):
        return False
    return _SURROGATE.search(_plain.encode(value)) is not None


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_reject)
_plain = json.JSONEncoder(ensure_ascii=False)
_SURROGATE = re.compile("[\ud800-\udfff]")
