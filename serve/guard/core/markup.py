"""The markup of the known tool-call formats: what it looks like, and where in a value none would write it."""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from serve.guard.core.marker_table import BEGINS_OF_CALLS, CANONICAL, ENDS, ENDS_OF_CALLS
from serve.parsing.names import plain

_RESERVED = r"<\|reserved_token_\d{1,9}\|>"
_SIGNS = frozenset(literal[0] for literal in CANONICAL)  # with which a marker begins


def _either(texts: Collection[str]) -> str:
    """Returns a pattern of any of these texts, the longest that fits.

    It is a tree of their characters: where no text goes on, it fails at the first one, however many texts there are.
    """
    by_sign: dict[str, list[str]] = {}
    for text in texts:
        if text:
            by_sign.setdefault(text[0], []).append(text[1:])
    branches = [re.escape(sign) + _either(rests) for sign, rests in by_sign.items()]
    tree = branches[0] if len(branches) == 1 else f"(?:{'|'.join(branches)})" if branches else ""
    return f"(?:{tree})?" if "" in texts and tree else tree


_ANY = f"{_either(CANONICAL)}|{_RESERVED}"
MARKUP = re.compile(_ANY)
RUN = re.compile(rf"(?:\s|{_ANY})*")
"""Markers with nothing but whitespace between them."""
RUN_IN_JSON = re.compile(rf"(?:\s|\\[nrt]|{_ANY})*")
"""The same inside a string of a JSON document."""
_LONGEST = 48  # characters of the longest marker
_PREFIXES = frozenset(literal[:length] for literal in CANONICAL for length in range(1, len(literal))) | frozenset(
    "<|reserved_token_"[:length] for length in range(1, 18)
)
_UNFINISHED_RESERVED = re.compile(r"<\|reserved_token_\d{0,9}\|?\Z")
_DISTINCT = 5  # characters from which on a piece of a marker is no accident: `<tool`, `</fun`
# One of these is in every text that holds markup. Looking for each takes less than trying the pattern at every `<`.
STARTS = (
    "<|", "<tool_", "</tool_", "function", "parameter", "think", "<arg", "</arg", "｜", "minimax", "<invoke",
    "</invoke", "seed:", "atem:", "<ifm|", "dots_", "longcat_", "iquest_", "steptml:", "DSML", "GCML", "|>",
    "[TOOL_CALLS]", "reasoning>", "_of_turn>", "[e~[",
)  # fmt: skip
_LONG = 4096  # characters, from which on that pays
_WINDOW = 64 * 1024  # characters that are searched at once: no other thread runs meanwhile
# A key that an XML parser made of `<parameter=parameter=city>`, or of another format's tag.
ODD_KEYS = ("parameter=", "function=", "parameter name=", "param name=")
_NAME_IN_KEY = re.compile(r"\W*([\w.$-]+)")
# Keys that models and parsers put around the arguments.
_WRAPPERS = frozenset({"arguments", "parameters", "parameter", "input", "args", "kwargs", "params"})

_STOPS = frozenset(".!。！，,;")
_HALF_ENDS = ("<|tool_call", "</tool_", "</func", "</para", "</arg_", "</｜DSML", "<｜tool▁", "</mini", "]<]mini")


def markers(text: str) -> Iterator[re.Match[str]]:
    """Yields the markers in a text, in their order."""
    if len(text) > _LONG and not any(start in text for start in STARTS):
        return
    for start in range(0, len(text), _WINDOW):
        end = start + _WINDOW
        yield from (match for match in MARKUP.finditer(text, start, end + _LONGEST) if match.start() < end)


def has_markup(text: str) -> bool:
    """Returns whether a marker is in a text."""
    return MARKUP.search(text) is not None


def unfinished(text: str) -> int:
    """Returns the length of the end of `text` that may begin markup, or 0."""
    tail = text[-_LONGEST:]
    for place, char in enumerate(tail):
        if char in _SIGNS:
            rest = tail[place:]
            if rest in _PREFIXES or _UNFINISHED_RESERVED.match(rest):
                return len(rest)
    return 0


def half_marker(text: str) -> int:
    """Returns the length of a cut marker at the end of a text that nothing but a marker begins with, or 0."""
    length = unfinished(text)
    return length if length >= _DISTINCT else 0


def is_residue(text: str) -> bool:
    """Returns whether a text is nothing but markers, the last of them maybe cut, and space."""
    end = RUN.match(text).end()  # type: ignore[union-attr]
    return end == len(text) or unfinished(text) == len(text) - end


_CHANNEL = re.compile(r"<\|channel\|>\s?(?:analysis|commentary|final)\b")


def without_ends(name: str) -> str:
    """Returns a call's name without what ended it: markers of ends, or the channel of gpt-oss that it was sent in."""
    first = MARKUP.search(name)
    if first is None:
        return name
    place = first.start()
    while match := _CHANNEL.match(name, place) or MARKUP.match(name, place):
        if match.re is MARKUP and canonical(match.group()) not in ENDS:
            return name
        place = match.end()
    return name[: first.start()] if name[place:].strip() == "" else name


def canonical(marker: str) -> str:
    """Returns a marker as its format spells it."""
    return CANONICAL.get(marker, marker)


def is_reserved(marker: str) -> bool:
    """Returns whether a marker is a token that no template uses."""
    return marker.startswith("<|reserved_token_")


def suspicion(arguments: str, value: Any) -> str | None:
    """Returns the markup in a call's arguments that no one would have written there; None if there is none.

    Markup in a string is data: a template, a parser's test, a pattern to search for. Damage looks different. It is the
    end of a call, or a reserved token, that the string did not begin, right behind a word or at the string's end; or
    the end of one call and the beginning of the next; or a tag that became part of a key.

    Args:
        arguments: JSON text.
        value: The same, parsed.
    """
    if "<" not in arguments and "=" not in arguments and "◁" not in arguments and "\\u" not in arguments:
        return None
    if isinstance(value, dict) and any(map(_is_odd_key, value)):
        return "a tag in a key"
    stack = [value]
    while stack:
        each = stack.pop()
        if isinstance(each, str):
            if found := _suspicion_in(each):
                return found
        elif isinstance(each, dict):
            if closed := next((key for key, inner in each.items() if _closes_itself(key, inner)), None):
                return f"</{closed}"
            stack += each.values()
        elif isinstance(each, list):
            stack += each
    return None


def _is_odd_key(key: str) -> bool:
    """Returns whether a tag, maybe cut, became a key or a part of it."""
    return key.startswith(ODD_KEYS) or ("<" in key and (has_markup(key) or half_marker(key) > 0))


def torn_key(arguments: Mapping[str, Any], names: Collection[str]) -> bool:
    """Returns whether a key is what damage left of a name: `command=ls`, `command">`, ` command`, `Command`.

    Or it is a wrapper that no schema knows, with all the arguments in it.

    Args:
        arguments: Of a call.
        names: Those of its schema; empty where other keys are as good.
    """
    if not names:
        return False
    missing: set[str] | None = None
    for key in arguments:
        if key in names:
            continue
        if missing is None:
            missing = {plain(name) for name in names if name not in arguments}
        name = _NAME_IN_KEY.match(key)
        if plain(key) in missing or (name is not None and plain(name[1]) in missing):
            return True
    return len(arguments) == 1 and any(_wraps(key, value, names) for key, value in arguments.items())


def _wraps(key: str, value: Any, names: Collection[str]) -> bool:
    if key not in _WRAPPERS or key in names or not isinstance(value, dict) or not value:
        return False
    return all(name in names for name in value)


def _closes_itself(key: str, value: Any) -> bool:
    """Returns whether a member is a text that ends in a closing tag of its own name, which it has not opened."""
    return isinstance(value, str) and value.endswith((f"</{key}>", f"</{key}")) and f"<{key}" not in value


def _suspicion_in(text: str) -> str | None:
    if "<" not in text and "◁" not in text:
        return None
    balance = _Balance(text)
    loose = ""  # an end that nothing has begun, with nothing but markup and space behind it so far
    last = 0
    for match in markers(text):
        marker = canonical(match.group())
        if last < match.start() and not text[last : match.start()].isspace():
            loose = ""
        last = match.end()
        if loose in ENDS_OF_CALLS and marker in BEGINS_OF_CALLS:
            return loose
        alone = match.start() == 0 and last == len(text) and marker not in ENDS_OF_CALLS
        if not alone and (is_reserved(marker) or balance.is_surplus(marker, match.start())):
            if (marker in ENDS_OF_CALLS or is_reserved(marker)) and _is_glued(text, match.start()):
                return marker
            loose = loose or marker
    if loose and (last == len(text) or text[last:].isspace()):
        return loose
    half = text[len(text) - half_marker(text) :]
    return half if half.startswith(_HALF_ENDS) else None


def _is_glued(text: str, place: int) -> bool:
    """Returns whether a word or a sentence ends right before a place. Who mentions a marker puts a sign before it."""
    before = text[max(0, place - 2) : place]
    return (before[-1:].isalnum() and before[:-1] != "\\") or before[-1:] in _STOPS


class _Balance:
    """Counts what a text begins and ends, from its beginning on."""

    def __init__(self, text: str) -> None:
        self._text = text
        self._begun: dict[str, tuple[int, int]] = {}  # how often, up to where
        self._ended: Counter[str] = Counter()

    def is_surplus(self, marker: str, place: int) -> bool:
        """Counts a marker; returns whether it ends what nothing before it has begun."""
        begin = ENDS.get(marker)
        if begin is None:
            return False
        begun, counted = self._begun.get(begin, (0, 0))
        begun += self._text.count(begin, counted, place)
        if "｜" in begin:
            begun += self._text.count(begin.replace("｜", "|"), counted, place)
        self._begun[begin] = begun, place
        self._ended[begin] += 1
        return self._ended[begin] > begun
