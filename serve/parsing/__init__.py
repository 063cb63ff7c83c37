"""Parsers of tool calls and reasoning: pure, right for any chunking, constant work per token."""

from serve.parsing.drafts import DraftingParser
from serve.parsing.events import (
    CallArguments,
    CallEnd,
    CallStart,
    Content,
    Event,
    Fault,
    ParsedMessage,
    Reasoning,
    ToolCall,
    Violation,
    ViolationKind,
    fold,
)
from serve.parsing.parser import GRAMMARS, ReasoningSplit, StreamParser, parse
from serve.parsing.values import coerce

__all__ = [
    "GRAMMARS",
    "CallArguments",
    "CallEnd",
    "CallStart",
    "Content",
    "DraftingParser",
    "Event",
    "Fault",
    "ParsedMessage",
    "Reasoning",
    "ReasoningSplit",
    "StreamParser",
    "ToolCall",
    "Violation",
    "ViolationKind",
    "coerce",
    "fold",
    "parse",
]
