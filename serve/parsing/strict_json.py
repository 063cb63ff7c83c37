"""JSON as its standard defines it, and what would take too long to decode.

Python's own decoder also accepts NaN and Infinity, and takes quadratic time for numbers of thousands of digits.
"""

from __future__ import annotations

import json
import re
from collections.abc import Collection
from typing import Any, NoReturn

_LONG = 64 * 1024  # characters; fewer are parsed in milliseconds whatever they hold
_PATIENT = 256 * 1024  # from here on they are parsed in a thread, and others are to have their turn
# Many times what a model says in one answer. Building as many values takes some milliseconds, and nothing else runs.
_MOST_BRACKETS = 60_000
_MOST_COLONS = 80_000
_MOST_SIGNS = 250_000
_LONG_DIGITS = 500  # a shorter number costs no more than the text that it is
_MOST_DIGITS = 500_000  # of such numbers together; decoding them takes some milliseconds
_STEP = 250
_WINDOW_BYTES = 1024 * 1024  # looked at in one go
_DIGITS = b"0123456789"
_AS_ZEROS = bytes.maketrans(_DIGITS, b"0" * len(_DIGITS))
_RUN = b"0" * _LONG_DIGITS


def loads(text: str) -> Any:
    """Parses one JSON document.

    Raises:
        ValueError: The text is not JSON, nested too deeply to parse, or holds too many values.
    """
    if len(text) > _LONG and _is_dense(text):
        raise ValueError("too many values")
    try:
        return (_patient if len(text) > _PATIENT else _decoder).decode(text)
    except RecursionError as error:
        raise ValueError("nested too deeply") from error


def with_escapes(text: str) -> str:
    """Returns JSON whose strings hold tabs and ends of lines as they are, as models copy them from files, with escapes
    in their place.
    """
    return _STRING.sub(lambda string: string[0].translate(_ESCAPES), text)


def _is_dense(text: str) -> bool:
    if text.count("[") + text.count("{") > _MOST_BRACKETS:
        return True
    colons = text.count(":")
    if colons > _MOST_COLONS or colons + text.count(",") > _MOST_SIGNS:
        return True
    return has_long_numbers(text.encode("utf-8", "surrogatepass"))


def repeats_a_key(text: str, keys: Collection[str]) -> bool:
    """Returns whether the outermost object of a document names a key twice, given those that it has once it is parsed.
    False if the document is long.
    """
    if text.count(":") <= len(keys) or len(text) > _LONG:
        return False
    if "\\u" not in text and not any([text.count(f'"{key}"') > 1 for key in keys]):
        return False  # as in most that hold other objects, or addresses
    sizes: list[int] = []
    try:
        json.JSONDecoder(object_pairs_hook=lambda members: sizes.append(len(members))).decode(text)
    except RecursionError:  # just not deep enough for `loads`
        return False
    return sizes[-1] > len(keys)  # the outermost object ends last


def is_same(one: Any, other: Any) -> bool:
    """Returns whether two parsed documents say the same: `1` is `1.0`, but not `true`, as it is in Python."""
    pairs = [(one, other)]
    while pairs:
        left, right = pairs.pop()
        if isinstance(left, dict) and isinstance(right, dict):
            if left.keys() != right.keys():
                return False
            pairs += [(value, right[key]) for key, value in left.items()]
        elif isinstance(left, list) and isinstance(right, list):
            if len(left) != len(right):
                return False
            pairs += zip(left, right, strict=True)
        elif isinstance(left, bool) is not isinstance(right, bool) or left != right:
            return False
    return True


def has_half_character(text: str, value: Any) -> bool:
    """Returns whether a string in a document, given as JSON and parsed, holds a lone surrogate, which cannot be
    encoded.
    """
    if "\\u" not in text and (text.isascii() or _SURROGATE.search(text) is None):
        return False
    return _SURROGATE.search(_plain.encode(value)) is not None


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


def _int(digits: str) -> int:
    return int(digits)


def _float(digits: str) -> float:
    return float(digits)


_decoder = json.JSONDecoder(parse_constant=_reject)
# Calls Python for every number, which lets other threads run: 200,000 floats would be 20 ms in one go.
_patient = json.JSONDecoder(parse_constant=_reject, parse_int=_int, parse_float=_float)
_plain = json.JSONEncoder(ensure_ascii=False)
_SURROGATE = re.compile("[\ud800-\udfff]")
_STRING = re.compile(r'"[^"\\]*(?:\\[^\t\n\r][^"\\]*)*"?')
_ESCAPES = str.maketrans({"\t": "\\t", "\n": "\\n", "\r": "\\r"})


def has_long_numbers(text: bytes) -> bool:
    """Returns whether a text, which should be JSON, holds more digits in long numbers than any that is meant well.

    Long numbers in strings count too; no model reads that many digits. For most texts every 250th byte tells.
    """
    sample = text[::_STEP]
    if (len(sample) - len(sample.translate(None, _DIGITS))) * _STEP <= _MOST_DIGITS:
        return False
    digits = 0
    for start in range(0, len(text), _WINDOW_BYTES):
        digits += text[start : start + _WINDOW_BYTES].translate(_AS_ZEROS).count(_RUN) * _LONG_DIGITS
        if digits > _MOST_DIGITS:
            return True
    return False
