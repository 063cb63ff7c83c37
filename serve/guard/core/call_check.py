"""What is wrong with a call, and what of that is only another spelling: of the tool's name, no arguments, a value.

Markup in a string is data: a template, a parser's test, a pattern to search for. Damage looks different (`suspicion`).
"""

from __future__ import annotations

import re
from collections import Counter
from collections.abc import Collection, Iterator, Mapping
from typing import Any

from serve.config.guard import GuardConfig
from serve.guard.core.call_assembly import HeldCall
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import (
    BEGINS_OF_CALLS,
    BEGINS_OF_PROMPTS,
    ENDS,
    ENDS_OF_CALLS,
    MARKUP,
    OTHER_BEGINS,
    REPLACEMENT,
    canonical,
    half_marker,
    has_markup,
    is_reserved,
    markers,
    without_ends,
)
from serve.guard.core.respelling import WHOLE, WRAPPERS, respelt
from serve.guard.core.schema import SchemaOutline
from serve.guard.core.schema_cost import UnjudgedError
from serve.guard.core.verdict import (
    Defect,
    Outcome,
    Severity,
    severity_of_mismatch,
    severity_of_near_copy,
    severity_of_unjudged,
)
from serve.parsing.strict_json import has_half_character, loads, repeats_a_key, with_escapes
from serve.parsing.tools import Names, plain

_MAX_NAME_CHARS = 1024
# Each value in another spelling is found by judging the arguments once more, and each of its readings as well. Some
# models write null for every argument that they leave out.
_MOST_RESPELT = 32
_MOST_RESPELT_CHARS = 256 * 1024
_MOST_READ_CHARS = 4 * _MOST_RESPELT_CHARS  # of all that is judged once more

# A key that an XML parser made of `<parameter=parameter=city>`, or of another format's tag.
ODD_KEYS = ("parameter=", "function=", "parameter name=", "param name=")
_NAME_IN_KEY = re.compile(r"\W*([\w.$-]+)")
# The tag of an argument that became a part of the value before it, which had lost its own end.
_TAG_OF_ARGUMENT = re.compile(r"<(?:parameter(?:\s+name)?=[\"']?|arg_key>)([\w.$-]{1,128})")

_STOPS = frozenset(".!。！，,;")
_QUOTE = '<|"|'  # Gemma's, maybe cut: what it encloses is the value
_HALF_ENDS = ("<|tool_call", "</tool_", "</func", "</para", "</arg_", "</｜DSML", "<｜tool▁", "</mini", "]<]mini")

_ALL_OF_IT = f"{WHOLE}: type"
"""The mismatch of a document that is a text itself."""


class CallCheck:
    """Checks the calls of one choice against what the request expects."""

    def __init__(self, expectation: Expectation, settings: GuardConfig, choice: int) -> None:
        self._expected = expectation
        self._settings = settings
        self._choice = choice
        self._names: Names | None = None

    def declares(self, name: str) -> bool:
        """Returns whether the request has a tool of a name."""
        return name in self._expected.tools

    def takes_nothing(self, name: str) -> bool:
        """Returns whether a call of a tool has no arguments, so that none can be missing."""
        tool = self._expected.tools.get(name)
        return tool is not None and tool.takes_nothing

    def early_defect(self, call: HeldCall) -> Defect | None:
        """Returns the defect that is certain before a call is complete, if there is one."""
        if call.broken:
            return self._defect(call, Outcome.INVALID_JSON, "arguments are not JSON")
        if len(call.name) > _MAX_NAME_CHARS:
            return self._defect(call, Outcome.UNKNOWN_TOOL, "an endless name")
        return None

    def judge(self, call: HeldCall, begun: str = "") -> tuple[Defect | None, list[str]]:
        """Mends in a complete call what is only another spelling; what has begun to go out of its arguments stays.

        Returns:
            The first defect that is left, None if there is none, and what was mended.
        """
        mended = []
        if call.prefix.unescaped and self._settings.rescue:
            call.replace_arguments(with_escapes(call.arguments))
            mended.append("tabs or ends of lines as they are in a text")
        if self._read(call):
            mended.append("a tool's name in another spelling")
        defect = self.defect(call)
        if defect is not None and _may_be_respelt(defect) and self._respell(call, begun):
            mended.append("a value in another spelling")
            defect = self.defect(call)
        return defect, mended

    def outline(self, name: str) -> SchemaOutline | None:
        """Returns what a tool's schema says of arguments that are not whole; None if a call to it must be."""
        if self._name_problem(name):
            return None
        try:
            return self._expected.tools[name].outline()
        except UnjudgedError:
            return None

    def defect(self, call: HeldCall) -> Defect | None:
        """Returns the first defect of a complete call; None if it has none."""
        text = call.arguments
        if problem := self._name_problem(call.name):
            outcome = Outcome.MARKER_LEAK if MARKUP.search(call.name) else Outcome.UNKNOWN_TOOL
            return self._defect(call, outcome, problem)
        try:
            value = call.value
        except ValueError:
            if call.incomplete:
                return self._defect(call, Outcome.TRUNCATED, "arguments end early")
            return self._defect(call, Outcome.INVALID_JSON, "arguments can't be read as JSON")
        if not isinstance(value, dict):
            return self._defect(call, Outcome.INVALID_JSON, "arguments are no object")
        if has_half_character(text, value):
            return self._defect(call, Outcome.TRUNCATED, "half a character in the arguments")
        found = self._schema_problem(call.name, value, text)
        severity = Severity.SUSPECT if found is None or found[2] is Severity.NOTE else found[2]
        if markup := suspicion(text, value):
            return self._defect(call, Outcome.MARKER_LEAK, f"{markup} in a call", severity)
        if REPLACEMENT in text and severity is Severity.SUSPECT:
            return self.cut_character(call)
        return None if found is None else self._defect(call, *found)

    def cut_character(self, call: HeldCall) -> Defect:
        """Returns the suspicion that a character of a call was cut."""
        return self._defect(call, Outcome.TRUNCATED, "a cut character in the arguments", Severity.SUSPECT)

    def near_copy(self, call: HeldCall) -> Defect | None:
        """Returns the suspicion that a call without a defect names what the prompt has but for one slip."""
        if self._settings.near_copies == "off" or self._expected.near_copies.first(call.value) is None:
            return None
        detail = f"{call.name} names what is nearly in the prompt"
        return self._defect(call, Outcome.NEAR_COPY, detail, severity_of_near_copy(self._settings))

    def _defect(self, call: HeldCall, outcome: Outcome, detail: str, severity: Severity = Severity.HARD) -> Defect:
        return Defect(outcome, severity, detail, self._choice, call.index)

    def _read(self, call: HeldCall) -> bool:
        """Puts the declared tool and `{}` where a call spells them in another way that is clear.

        Returns:
            True if the name was not the tool's.
        """
        misspelt = call.name not in self._expected.tools
        if misspelt:
            meant = self._tools_meant_by(call)
            if len(meant) != 1:
                return False
            call.name = meant[0]
        if call.is_empty and not call.begins_object and self._accepts(call.name, {}, chars=2):
            call.replace_arguments("{}")
        return misspelt

    def _respell(self, call: HeldCall, begun: str) -> bool:
        """Puts other spellings of values in their place, if nothing else keeps a call from its schema.

        Returns:
            True if the call fits its schema now.
        """
        text = call.arguments
        if not self._settings.rescue or len(text) > _MOST_RESPELT_CHARS:
            return False
        try:
            mismatch = self._mismatch(call.name, text)
            for _ in range(min(_MOST_RESPELT, _MOST_READ_CHARS // len(text))):
                if mismatch is None:
                    break
                readings = ((each, self._mismatch(call.name, each)) for each in respelt(text, mismatch))
                text, mismatch = next(each for each in readings if each[1] != mismatch)
        except (StopIteration, UnjudgedError, ValueError):
            return False
        if mismatch is not None or text == call.arguments or not text.startswith(begun):
            return False
        call.replace_arguments(text)
        return call.prefix.complete

    def _mismatch(self, name: str, arguments: str) -> str | None:
        """Returns where arguments, which are valid JSON, fail the schema of a tool."""
        value = loads(arguments)
        return _ALL_OF_IT if isinstance(value, str) else self._expected.tools[name].mismatch(value, len(arguments))

    def _tools_meant_by(self, call: HeldCall) -> list[str]:
        """Returns the declared tools that a call's name may spell; of several those that take its arguments."""
        if self._names is None:
            self._names = Names(self._expected.tools)
        meant = self._names.meant_by(without_ends(call.name), is_id=self._expected.grammar == "kimi_k2")
        if len(meant) < 2:
            return meant
        try:
            value = call.value
        except ValueError:
            return meant
        return [name for name in meant if self._accepts(name, value, len(call.arguments))]

    def _accepts(self, name: str, value: Any, chars: int) -> bool:
        try:
            return self._expected.tools[name].mismatch(value, chars) is None
        except UnjudgedError:
            return True

    def _schema_problem(self, name: str, value: Any, text: str) -> tuple[Outcome, str, Severity] | None:
        schema = self._expected.tools[name]
        try:
            mismatch = schema.mismatch(value, len(text))
        except UnjudgedError as error:
            return Outcome.UNJUDGED, f"{name}: {error}", severity_of_unjudged(self._settings)
        if mismatch is not None:
            severity = severity_of_mismatch(self._settings, strict=schema.strict)
            return Outcome.SCHEMA_MISMATCH, f"{name} at {mismatch}", severity
        if torn_key(value, schema.names):
            return Outcome.SCHEMA_MISMATCH, f"{name}: a torn key", Severity.SUSPECT
        if swallows(value, schema.names):
            return Outcome.SCHEMA_MISMATCH, f"{name}: an argument within another", Severity.SUSPECT
        if repeats_a_key(text, value):  # clients take the first, the last or neither
            return Outcome.SCHEMA_MISMATCH, f"{name}: an argument given twice", Severity.SUSPECT
        return None

    def _name_problem(self, name: str) -> str | None:
        if name not in self._expected.tools:
            return "a tool that the request does not have" if name else "a call without a name"
        if self._expected.forced not in (None, name):
            return "another tool than the forced one"
        return None


def _may_be_respelt(defect: Defect) -> bool:
    """Returns whether what keeps a call that has this defect from going out may be the spelling of a value."""
    return defect.outcome in (Outcome.SCHEMA_MISMATCH, Outcome.INVALID_JSON) and defect.severity is not Severity.NOTE


def suspicion(arguments: str, value: Any) -> str | None:
    """Returns the markup in a call's arguments that no one would have written there; None if there is none.

    Damage is the end of a call, or a reserved token, that the string did not begin, right behind a word or at the
    string's end; or the end of one call and the beginning of the next; or the beginning of a prompt right behind a
    word; or a tag that became part of a key; or quotes of Gemma's around the value.

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

    Or it is a wrapper that no schema knows, with all the arguments in it. Without names, any key is as good.
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


def swallows(arguments: Mapping[str, Any], names: Collection[str]) -> bool:
    """Returns whether a text ends in another argument of the call, of which the key is missing."""
    texts = (value for value in arguments.values() if isinstance(value, str))
    return any(name in names and name not in arguments for text in texts for name in open_arguments(text))


def open_arguments(text: str) -> Iterator[str]:
    """Yields the names of the arguments of which a text holds the tag that begins them, and no end behind it."""
    if "<parameter" in text or "<arg_key>" in text:
        end = max(text.rfind("</parameter"), text.rfind("</arg_value"), 0)
        yield from (tag[1] for tag in _TAG_OF_ARGUMENT.finditer(text, end))


def _wraps(key: str, value: Any, names: Collection[str]) -> bool:
    if key not in WRAPPERS or key in names or not isinstance(value, dict) or not value:
        return False
    return all(name in names for name in value)


def _closes_itself(key: str, value: Any) -> bool:
    """Returns whether a member is a text that ends in a closing tag of its own name, which it has not opened."""
    return isinstance(value, str) and value.endswith((f"</{key}>", f"</{key}")) and f"<{key}" not in value


def _suspicion_in(text: str) -> str | None:
    if "<" not in text and "◁" not in text:
        return None
    if text.startswith(_QUOTE) and len(text) > len(_QUOTE) + 1:
        return _QUOTE
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
        if marker in BEGINS_OF_PROMPTS and _is_glued(text, match.start()):
            return marker
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
        if (other := OTHER_BEGINS.get(begin)) is not None:
            begun += self._text.count(other, counted, place)
        self._begun[begin] = begun, place
        surplus = self._ended[begin] >= begun
        self._ended[begin] += not surplus  # one that ends nothing takes no end from what begins behind it
        return surplus
