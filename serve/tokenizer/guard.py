"""Keeps what users typed apart from what a chat template wrote, through the rendering of the template.

A template yields one string, in which a user's `<|im_end|>` looks like the template's own. So every character in the
caller's strings that could begin a special token is followed by a mark before rendering, and the mark is taken out
again after the special tokens have been found.
"""

import re
from collections.abc import Callable, Iterator
from typing import Any

# A Unicode noncharacter: no text holds it, and if one does it is marked too, so nothing is lost.
MARK = "\U0010fffe"
_MARK_AFTER = re.compile(f"([<[{MARK}]){MARK}")
_MARKED = {ord(char): char + MARK for char in ("<", "[", MARK)}


def guarded(value: Any) -> Any:
    """A copy of a JSON-like value in which no string can begin a special token."""
    if isinstance(value, str):
        return value.translate(_MARKED)
    if isinstance(value, dict):
        return {guarded(key): guarded(item) for key, item in value.items()}
    if isinstance(value, (list, tuple)):
        return [guarded(item) for item in value]
    return value


def unguarded_parts(rendered: str, split_special: Callable[[str], list[str]]) -> Iterator[tuple[str, bool]]:
    """Cut a rendered prompt into (text, is a special token), without marks.

    Args:
        rendered: What the template gave for guarded values.
        split_special: Splits a text so that every second part is the name of a special token.
    """
    for index, part in enumerate(split_special(rendered)):
        if index % 2:
            yield part, True
        elif part:
            yield _without_marks(part), False


def _without_marks(text: str) -> str:
    return _MARK_AFTER.sub(r"\1", text)
