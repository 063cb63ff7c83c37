"""Tells the closing tag of an XML parameter from the same letters in its value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping, Set
from dataclasses import dataclass

END = ""  # the end of the output, as the kind of what follows a tag
_OPENINGS = {"end_parameter": "parameter", "end_function": "function", "end_block": "block"}


@dataclass(frozen=True, slots=True)
class Nesting:
    """The tags that may stand behind the closing tags of a format.

    Attributes:
        followers: By the kind of a closing tag, the kinds of tokens after which it may close.
        outer: The kind of the tag that closes the call itself.
    """

    followers: Mapping[str, Set[str]]
    outer: str


IN_FUNCTION = Nesting(
    {
        "end_parameter": {"parameter", "end_function", "end_block", END},
        "drifted": {"parameter", "end_function"},
        "end_function": {"end_block", "block", "function", END},
        "end_block": {"block", END},
    },
    outer="end_function",
)


class Closings:
    """The tags inside one value of a call, which may be `wrapped` in a `<tool_call>` block.

    Attributes:
        odd: True if the value holds a closing tag without its opening tag.
    """

    def __init__(self, nesting: Nesting = IN_FUNCTION, wrapped: bool = True) -> None:
        self.odd = False
        self._followers = nesting.followers
        self._outer = nesting.outer
        self._wrapped = wrapped
        self._quoted: Counter[str] = Counter()  # opening tags inside the value that wait for their closing tags

    @property
    def open(self) -> bool:
        """True if the value holds an opening tag without its closing tag."""
        return any(self._quoted.values())

    def opened(self, kind: str) -> None:
        """Notes an opening tag that is text of the value."""
        self._quoted[kind] += 1

    def inside(self, kind: str) -> bool:
        """Returns whether the value is inside of what such a tag has opened in it."""
        return self._quoted[kind] > 0

    def closes(self, tag: str, follower: str) -> bool:
        """Returns whether a closing tag is real, by the kind of the token after it; "text" for text."""
        quoted = self._quoted
        if tag == "end_function" and not self._wrapped and not quoted["function"]:
            return True
        if follower not in self._followers[tag]:
            return False
        if tag == "end_function":
            return not quoted["function"]
        if tag == "end_block":
            return not quoted["block"] and not quoted["function"]
        if follower == self._outer and not quoted[_OPENINGS[self._outer]]:
            return True
        return not quoted["parameter"]

    def kept(self, tag: str) -> None:
        """Notes a closing tag that is text of the value."""
        opening = _OPENINGS.get(tag, "")
        if opening and self._quoted[opening]:
            self._quoted[opening] -= 1
        elif opening:
            self.odd = True
