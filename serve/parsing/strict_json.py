"""JSON as its standard defines it; Python's own decoder also accepts NaN and Infinity."""

from __future__ import annotations

import json
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


def _reject(constant: str) -> NoReturn:
    raise ValueError(f"{constant} is not JSON")


_decoder = json.JSONDecoder(parse_constant=_reject)
