"""Leaked markup read by our own parser: the calls that an engine's parser missed, where they are unambiguous."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any, Protocol

from serve.integrity.calls import CallCheck, HeldCall
from serve.integrity.expectation import Expectation
from serve.integrity.markup import MARKUP
from serve.integrity.outcome import Severity


class ParsedCall(Protocol):
    """As `serve.parsing.ToolCall`."""

    @property
    def id(self) -> str: ...
    @property
    def name(self) -> str: ...
    @property
    def arguments(self) -> str: ...


class ParsedMessage(Protocol):
    """As `serve.parsing.Message`."""

    @property
    def content(self) -> str | None: ...
    @property
    def tool_calls(self) -> Sequence[ParsedCall]: ...
    @property
    def violations(self) -> Sequence[object]: ...


class Parse(Protocol):
    """As `serve.parsing.parse`."""

    def __call__(self, text: str, grammar: str, *, tools: list[Any], thinking: bool) -> ParsedMessage:
        """The message that a model's text means."""


@dataclass(frozen=True)
class Rescued:
    """What leaked markup turned out to be."""

    calls: tuple[HeldCall, ...]
    content: str


def rescue(
    leak: str, grammar: str | None, expectation: Expectation, check: CallCheck, parse: Parse | None
) -> Rescued | None:
    """The calls in `leak`; None unless it reads as nothing but whole, valid calls.

    Args:
        leak: Text from the first markup on.
        grammar: Its format, if known.
        expectation: What the request demands.
        check: Judges the calls.
        parse: Reads the text.
    """
    if parse is None:
        return None
    message = parse(leak, grammar or grammar_of(leak), tools=expectation.raw_tools, thinking=False)
    content = message.content or ""
    if not message.tool_calls or message.violations or MARKUP.search(content):
        return None
    calls = []
    for index, parsed in enumerate(message.tool_calls):
        call = HeldCall(index)
        call.add({"id": parsed.id, "function": {"name": parsed.name, "arguments": parsed.arguments}})
        violation = check.violation(call, 0)
        if violation is not None and violation.severity is not Severity.NOTE:
            return None
        calls.append(call)
    return Rescued(tuple(calls), content.strip())


def grammar_of(leak: str) -> str:
    """The format whose markup `leak` begins with."""
    if leak.startswith("<|"):
        return "kimi_k2"
    body = leak.removeprefix("<tool_call>").lstrip()
    return "hermes" if body.startswith("{") else "qwen3_coder"
