"""Tells the closing tag of an XML parameter from the same letters in its value."""

from __future__ import annotations

from collections import Counter
from collections.abc import Mapping

END = ""  # the end of the output, as the kind of what follows a tag
# The kinds of tokens after which a closing tag may close.
_FOLLOWERS: Mapping[str, frozenset[str]] = {
    "end_parameter": frozenset({"parameter", "end_function", "end_block", END}),
    "drifted": frozenset({"parameter", "end_function"}),
    "end_function": frozenset({"end_block", "block", "function", END}),
    "end_block": frozenset({"block", END}),
}
_OPENINGS = {"end_parameter": "parameter", "end_function": "function", "end_block": "block"}


class Closings:
    """The tags inside one value.

    Args:
        wrapped: True if the call stands in a `<tool_call>` block.

    Attributes:
        odd: True if the value holds a closing tag without its opening tag.
    """

    def __init__(self, wrapped: bool = True) -> None:
        self.odd = False
        self._wrapped = wrapped
        self._quoted: Counter[str] = Counter()  # opening tags inside the value that wait for their closing tags

    @property
    def open(self) -> bool:
        """True if the value holds an opening tag without its closing tag."""
        return any(self._quoted.values())

    def opened(self, kind: str) -> None:
        """Notes an opening tag that is text of the value."""
        self._quoted[kind] += 1

    def closes(self, tag: str, follower: str) -> bool:
        """Returns whether a closing tag is real.

        Args:
            tag: Its kind.
            follower: The kind of the token after it; "text" for text.
        """
        quoted = self._quoted
        if tag == "end_function" and not self._wrapped and not quoted["function"]:
            return True
        if follower not in _FOLLOWERS[tag]:
            return False
        if tag == "end_function":
            return not quoted["function"]
        if tag == "end_block":
            return not quoted["block"] and not quoted["function"]
        if follower == "end_function" and not quoted["function"]:
            return True
        return not quoted["parameter"]

    def kept(self, tag: str) -> None:
        """Notes a closing tag that is text of the value."""
        opening = _OPENINGS.get(tag, "")
        if opening and self._quoted[opening]:
            self._quoted[opening] -= 1
        elif opening:
            self.odd = True
