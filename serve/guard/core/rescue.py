"""Reads leaked markup with our own parser: the calls that an engine's parser missed, if they are unambiguous."""

from __future__ import annotations

from dataclasses import dataclass

from serve.guard.core.call_assembly import Entry, HeldCall
from serve.guard.core.call_guard import CallCheck
from serve.guard.core.expectation import Expectation
from serve.guard.core.markup import MARKUP
from serve.guard.core.verdict import Severity
from serve.parsing import parse

# Reading a marker, and checking the call that it may begin, takes up to 40 microseconds, any other sign less than one.
# An answer that leaks more is run again instead.
_MARKERS = ("<|", "tool_call>", "<function", "</function", "<parameter", "</parameter", "think>")
_MOST_MARKERS = 600
_SIGNS = '<{}[]":,\\'
_MOST_SIGNS = 40_000
_OF_A_CUT_CALL = {"unfinished_call", "unknown_tool", "missing_argument"}


@dataclass(frozen=True)
class Rescued:
    """The calls and the text in leaked markup."""

    calls: tuple[HeldCall, ...]
    content: str


def rescue(leak: str, grammar: str | None, expectation: Expectation, check: CallCheck) -> Rescued | None:
    """Returns the calls in `leak`; None unless it reads as nothing but complete, valid calls.

    Args:
        leak: Text from the first markup on.
        grammar: Its format, if known.
        expectation: What the request demands.
        check: Checks the calls.
    """
    if not _is_readable(leak):
        return None
    message = parse(leak, grammar or grammar_of(leak), tools=expectation.raw_tools, thinking=False)
    content = message.content or ""
    if not message.tool_calls or message.violations or MARKUP.search(content):
        return None
    calls = []
    for index, parsed in enumerate(message.tool_calls):
        call = HeldCall(index)
        call.feed(Entry(index, parsed.id, parsed.name, parsed.arguments))
        defect = check.defect(call, 0)
        if defect is not None and defect.severity is not Severity.NOTE:
            return None
        calls.append(call)
    return Rescued(tuple(calls), content.strip())


def is_cut_call(leak: str, grammar: str | None, expectation: Expectation) -> bool:
    """Returns whether `leak` is the beginning of one call and nothing else, as a length limit leaves it.

    Args:
        leak: Text from the first markup on.
        grammar: Its format, if known.
        expectation: What the request demands.
    """
    if not _is_readable(leak):
        return False
    message = parse(leak, grammar or grammar_of(leak), tools=expectation.raw_tools, thinking=False)
    kinds: set[str] = {violation.kind for violation in message.violations}
    return len(message.tool_calls) <= 1 and "unfinished_call" in kinds and kinds <= _OF_A_CUT_CALL


def _is_readable(leak: str) -> bool:
    return sum(map(leak.count, _MARKERS)) <= _MOST_MARKERS and sum(map(leak.count, _SIGNS)) <= _MOST_SIGNS


def grammar_of(leak: str) -> str:
    """Returns the format whose markup `leak` begins with."""
    if leak.startswith("<|"):
        return "kimi_k2"
    body = leak.removeprefix("<tool_call>").lstrip()
    return "hermes" if body.startswith("{") else "qwen3_coder"
