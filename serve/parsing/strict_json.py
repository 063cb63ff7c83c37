"""JSON as its standard defines it; Python's own decoder also accepts NaN and Infinity."""

from __future__ import annotations

import json
import re
from typing import Any, NoReturn


def loads(text: str) -> Any:
    """Parses one JSON document.

    Raises:
        ValueError: The text is not JSON, or nested too deeply to parse.
    """
    try:
        return _decoder.decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


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
