"""Turns a simulated model's tokens into OpenAI deltas, as the parsers of different engines do."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from random import Random
from typing import Any, Protocol

from lab.sim.segments import Segment
from lab.sim.steps import ModelToken
from serve.parsing import CallArguments, CallEnd, CallStart, Content, Event, Fault, Reasoning, StreamParser

Delta = dict[str, Any]


class DeltaParser(Protocol):
    """Turns tokens into deltas; `calls` counts the calls that it has opened."""

    calls: int

    def feed(self, tokens: Sequence[ModelToken]) -> Delta:
        """Returns the delta of one step; empty if there is nothing to send yet."""

    def finish(self, *, cut: bool) -> Delta:
        """Returns what was held back at the end of the text; `cut` is True if the length limit ended it."""


class PassingParser:
    """Behaves like vLLM's parsers: names and arguments are sent as the model wrote them, right or wrong."""

    def __init__(self, grammar: str, rng: Random) -> None:
        self.calls = 0
        self._ids_of_the_model = grammar == "kimi_k2"
        self._rng = rng
        self._name: Segment | None = None

    def feed(self, tokens: Sequence[ModelToken]) -> Delta:
        delta: Delta = {}
        for token in tokens:
            part = token.segment.part
            if part == "name":
                self._name = token.segment
                continue
            self._open(delta)
            if part == "reasoning":
                append_text(delta, "reasoning", token.text)
            elif part in ("content", "json"):
                append_text(delta, "content", token.text)
            elif part == "args" and token.text:
                entry = {"index": self.calls - 1, "function": {"arguments": token.text}}
                delta.setdefault("tool_calls", []).append(entry)
        return delta

    def finish(self, *, cut: bool) -> Delta:
        delta: Delta = {}
        self._open(delta)
        return delta

    def _open(self, delta: Delta) -> None:
        """Send a call's opening entry once its name is complete."""
        if self._name is None:
            return
        name = self._name
        self._name = None
        identity = name.text if self._ids_of_the_model else f"chatcmpl-tool-{self._rng.getrandbits(64):016x}"
        function = {"name": name.handed_on, "arguments": ""}
        entry = {"index": self.calls, "id": identity, "type": "function", "function": function}
        delta.setdefault("tool_calls", []).append(entry)
        self.calls += 1


class OwnParser:
    """Our own parser, as in the engines that specgate hosts, reading text only.

    Text that was meant as a call but cannot be parsed leaves no trace in OpenAI's deltas, so a guard could not see it.

    Args:
        grammar: The model's tool-call format.
        tools: The request's tools.
        thinking: True if the text begins with reasoning.
        reports: True to send the text of such a call as content, for a guard to find.
    """

    def __init__(self, grammar: str, tools: Iterable[Mapping[str, Any]], *, thinking: bool, reports: bool) -> None:
        self.calls = 0
        self._reports = reports
        self._parser = StreamParser(grammar, tools, thinking)

    def feed(self, tokens: Sequence[ModelToken]) -> Delta:
        return self._delta(self._parser.feed("".join(token.text for token in tokens)))

    def finish(self, *, cut: bool) -> Delta:
        self._reports = self._reports and not cut
        return self._delta(self._parser.finish())

    def _delta(self, events: Iterable[Event]) -> Delta:
        delta: Delta = {}
        for event in events:
            match event:
                case Reasoning(text):
                    append_text(delta, "reasoning", text)
                case Content(text):
                    append_text(delta, "content", text)
                case CallStart(call, identity, name):
                    self.calls += 1
                    entry = {
                        "index": call,
                        "id": identity,
                        "type": "function",
                        "function": {"name": name, "arguments": ""},
                    }
                    delta.setdefault("tool_calls", []).append(entry)
                case CallArguments(call, text):
                    entry = {"index": call, "function": {"arguments": text}}
                    delta.setdefault("tool_calls", []).append(entry)
                case Fault(violation) if self._reports and violation.hidden:
                    append_text(delta, "content", violation.raw)
                case CallEnd() | Fault():
                    pass  # OpenAI's deltas cannot express either
        return delta


class LeakingParser:
    """Behaves like an engine without a tool parser: everything but reasoning is content, including markers."""

    def __init__(self) -> None:
        self.calls = 0

    def feed(self, tokens: Sequence[ModelToken]) -> Delta:
        delta: Delta = {}
        for token in tokens:
            if token.segment.part not in ("think_begin", "think_end"):
                append_text(delta, "reasoning" if token.segment.part == "reasoning" else "content", token.text)
        return delta

    def finish(self, *, cut: bool) -> Delta:
        return {}


def append_text(delta: Delta, field: str, text: str) -> None:
    """Add text to a field of a delta; empty text adds no field."""
    if text:
        delta[field] = delta.get(field, "") + text
