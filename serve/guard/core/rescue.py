"""Reads leaked markup with our own parsers: the calls that an engine's parser missed, if they are unambiguous."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from dataclasses import dataclass

from serve.guard.core.call_assembly import Entry, HeldCall
from serve.guard.core.call_check import CallCheck
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import ENDS, ENDS_OF_CALLS, MARKUP, canonical
from serve.guard.core.verdict import Severity
from serve.parsing import GRAMMARS, ParsedMessage, Violation, parse
from serve.parsing.families import grammars_by_markup
from serve.parsing.json_scanner import JsonScanner

# Reading a marker, and checking the call that it may begin, takes up to 40 microseconds, any other sign less than one.
# An answer that leaks more is run again instead.
_MARKERS = (
    "<|", "tool_call>", "<function", "</function", "<parameter", "</parameter", "think>", "<arg_", "</arg_", "<｜",
    "</｜", "longcat_arg_", "<invoke", "</invoke", "]<]", "[TOOL_CALLS]",
)  # fmt: skip
_MOST_MARKERS = 600
_SIGNS = '<{}[]":,\\'
_MOST_SIGNS = 40_000
# What a parser says of calls that the guard judges itself, and of tags that belong to no call.
_HARMLESS = {
    "stray_marker", "drifted_marker", "malformed_arguments", "unknown_tool", "unknown_argument", "missing_argument",
}  # fmt: skip
_END = re.compile(r"\s*(?:\]?<\]minimax\[>\[)?<(?:/(?P<tag>[\w:｜ ]{1,48})|[|｜](?P<token>[\w▁]{1,48})[|｜])>")
# The end of a parameter is none of them: it shows that its value went on.
_ENDS = ("tool", "func", "call", "invo", "dsml", "im_end", "endoftext", "end▁of", "sep", "close")
_WITHOUT_END = ("[TOOL_CALLS]", "<|python_tag|>", "<|python_start|>", "<|tool_call|>")  # begin calls that nothing ends
_MISTRALS_HEADER = re.compile(r"(?:\[(?:ARGS|CALL_ID)\]|[^{\[])*")  # between the marker and the object
_ENDS_IN_A_TAG = re.compile(r">\s*</\w+>\s*\Z")
_LONGEST_ENDS = 256
_OPENINGS = tuple(dict.fromkeys(opener for grammar in GRAMMARS.values() for opener in grammar.call_openers))
_WRAP = r"(?:```\w*|<tools>)"
_WRAPPED = re.compile(rf"\s*<tool_call>\s*{_WRAP}\s*(?=\{{)")
_UNWRAPPED = re.compile(r"\s*(?:```|</tools>)\s*</tool_call>")


@dataclass(frozen=True)
class Rescued:
    """The calls and the text in leaked markup.

    Attributes:
        calls: All that are complete and valid.
        content: The text beside them.
        is_cut: Whether the leak ends in the beginning of another call.
    """

    calls: tuple[HeldCall, ...]
    content: str
    is_cut: bool = False


def goes_on(leak: str) -> bool:
    """Returns whether words follow the last marker of a leak, or the object or list behind one that nothing ends."""
    end = max((match.end() for match in MARKUP.finditer(leak)), default=0)
    if leak.endswith(_WITHOUT_END, 0, end):
        end = JsonScanner().feed_value(leak, _MISTRALS_HEADER.match(leak, end).end())  # type: ignore[union-attr]
    return end >= 0 and not (leak[end:] == "" or leak[end:].isspace())


def is_shown(leak: str) -> bool:
    """Returns whether a leak ends in words behind an end: whoever loses a call says nothing about it."""
    *_, last = ("", *(marker.group() for marker in MARKUP.finditer(leak)))
    return canonical(last) in ENDS and goes_on(leak)


def rescue(leak: str, expectation: Expectation, check: CallCheck, *, cut: bool = False) -> Rescued | None:
    """Returns the calls in `leak`; None unless some format reads it as nothing but complete, valid calls and text.

    The leak begins with markup. Where the request's own limits `cut` it, its last call may be incomplete.
    """
    for text, message in _readings(leak, expectation):
        if (rescued := _rescued(text, message, check, cut=cut)) is not None:
            return rescued
    return None


def _rescued(text: str, message: ParsedMessage, check: CallCheck, *, cut: bool) -> Rescued | None:
    parsed = message.tool_calls
    last = len(parsed) - 1
    unfinished = [each for each in message.violations if each.kind == "unfinished_call"] if cut else []
    if any(each.index == last for each in unfinished):
        parsed = parsed[:-1]
    behind = [each for each in message.violations if _is_behind_calls(each, text)]
    faults = [each for each in message.violations if each not in behind and not _is_harmless(each, text)]
    if any(each not in unfinished or each.index not in (None, last) for each in faults):
        return None
    content = "".join([message.content or "", *(each.raw for each in behind)])
    if unfinished:
        content = content.removesuffix(text[unfinished[0].position :])
    content = without_stray_ends(content)
    if half := _half_opening(content) if cut else 0:
        content = content[:-half]
    if not (parsed or unfinished) or MARKUP.search(content):
        return None
    calls = []
    for index, each in enumerate(parsed):
        call = HeldCall(index)
        call.feed(Entry(index, each.id, each.name, each.arguments), check.declares)
        defect, _ = check.judge(call)
        if defect is not None and defect.severity is not Severity.NOTE:
            return None
        calls.append(call)
    return Rescued(tuple(calls), content.strip(), bool(unfinished or half))


def _is_behind_calls(violation: Violation, text: str) -> bool:
    """Returns whether a violation is text behind calls, in a format whose calls end the turn."""
    if violation.kind != "stray_text" or violation.index is not None:
        return False
    return any(canonical(each.group()) in ENDS_OF_CALLS for each in MARKUP.finditer(text, 0, violation.position))


def _is_harmless(violation: Violation, text: str) -> bool:
    if violation.kind == "unfinished_call" and violation.index is None:  # a wrapper without end, and no call without
        begun = violation.position + len(violation.raw)
        return not violation.raw or (MARKUP.fullmatch(violation.raw) is not None and text[begun:].strip() != "")
    if violation.kind == "ambiguous_value":  # the tag is data in the middle of a value, and may be doubled at its end
        return _ENDS_IN_A_TAG.search(violation.raw[-_LONGEST_ENDS:]) is None
    return violation.kind in _HARMLESS and not violation.hidden


def without_stray_ends(content: str) -> str:
    """Returns the text beside calls without closing tags that belong to none of them."""
    place = 0
    while (end := _END.match(content, place)) and any(part in end[end.lastgroup or 0].lower() for part in _ENDS):
        place = end.end()
    return content[place:]


def _half_opening(content: str) -> int:
    """Returns the length of the half of an opening marker at the end of a text, or 0."""
    place = content.rfind("<")
    half = content[place:] if place >= 0 else ""
    return len(half) if half and any(opening.startswith(half) for opening in _OPENINGS) else 0


def _readings(leak: str, expectation: Expectation) -> Iterator[tuple[str, ParsedMessage]]:
    """Yields what each format reads, and of which text, the model's own first; nothing if that would take too long."""
    formats = grammars_of(leak, expectation.grammar)
    most = _MOST_MARKERS // len(formats)
    markers, signs = (sum(map(leak.count, parts)) for parts in (_MARKERS, _SIGNS))
    if markers > most or signs > _MOST_SIGNS // len(formats):
        return
    leak = MARKUP.sub(lambda marker: canonical(marker.group()), leak)
    for each in formats:
        yield leak, parse(leak, each, tools=expectation.raw_tools, thinking=False)
    if (plain := _unwrapped(leak)) is not None:
        yield plain, parse(plain, "hermes", tools=expectation.raw_tools, thinking=False)


def grammars_of(leak: str, grammar: str | None = None) -> list[str]:
    """Returns the formats that may read a leak, which begins with markup: the model's own, if known, comes first."""
    fallback = grammars_by_markup(leak)[:1] or ["qwen3_coder"]  # which reads what hermes does, too
    own = [grammar] if grammar in GRAMMARS else []
    return list(dict.fromkeys([*own, *fallback]))


def _unwrapped(leak: str) -> str | None:
    """Returns a leak without the code fences or tags that some models put around the object in a block."""
    blocks = []
    place = 0
    while match := _WRAPPED.match(leak, place):
        try:
            _, end = json.JSONDecoder().raw_decode(leak, match.end())
        except (ValueError, RecursionError):
            return None
        closing = _UNWRAPPED.match(leak, end)
        if closing is None:
            return None
        blocks.append(f"<tool_call>{leak[match.end() : end]}</tool_call>")
        place = closing.end()
    return "".join(blocks) + leak[place:] if blocks else None
