"""Keeps what users typed apart from what a chat template wrote, while the template renders both into one string.

In that string, a user's `<|im_end|>` looks like the template's own. So a mark is put after every character in the
caller's strings that could begin a special token, and removed after the special tokens have been found.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

# A Unicode noncharacter: no text holds it, and if one does it is marked too, so nothing is lost.
MARK = "\U0010fffe"
_MARK_AFTER = re.compile(f"([<[{MARK}]){MARK}")
_MARKED = {ord(char): char + MARK for char in ("<", "[", MARK)}


def escape(value: Any) -> Any:
    """Returns a copy of a JSON-like value in which no string can begin a special token."""
    if isinstance(value, str):
        return value.translate(_MARKED)
    if isinstance(value, dict):
        return {escape(key): escape(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [escape(item) for item in value]
    return value


def unescaped_parts(rendered: str, split_special: Callable[[str], list[str]]) -> Iterator[tuple[str, bool]]:
    """Splits a rendered prompt into (text, is a special token), without marks. Every second part of what
    `split_special` returns is the name of a special token.
    """
    for index, part in enumerate(split_special(rendered)):
        if index % 2:
            yield part, True
        elif part:
            yield _MARK_AFTER.sub(r"\1", part), False
