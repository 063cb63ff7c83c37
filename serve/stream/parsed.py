"""Reads an engine's raw text with our own parsers: for pools whose engine parses neither calls nor reasoning."""

from __future__ import annotations

import uuid
from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any

from serve.errors import EngineError, encode_json
from serve.http1.sse import decode_chunk
from serve.parsing import CallArguments, CallStart, Content, DraftingParser, Event, Fault, Reasoning, StreamParser
from serve.stream.frame import Frame
from serve.stream.line import Stage

_REASONING = "reasoning"
TEXT = "content"
MODELS_OWN_IDS = frozenset({"kimi_k2"})  # grammars whose calls carry the ids that their history needs
_ENVELOPE = ("id", "object", "created", "model", "system_fingerprint")

Open = Callable[[], StreamParser]


class Parsed(Stage):
    """Puts the reasoning, the text and the calls of raw content in its place, choice by choice.

    Args:
        open_: Makes a parser for a choice.
        grammar: Of the parser.
        reports: Text that meant a call and yielded none goes out as content, where the guard looks for it.
    """

    exact = False

    def __init__(self, open_: Open, grammar: str, *, reports: bool) -> None:
        self._open = open_
        self._own_ids = grammar in MODELS_OWN_IDS
        self._reports = reports
        self._choices: dict[int, RawChoice] = {}
        self._envelope: dict[str, Any] = {}

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame with what its text means; the very same one if that is the text itself."""
        template = frame.template
        if template is not None:
            if template.place.field != TEXT:
                return (frame,)
            choice = self._choice(template.place.choice)
            delta, plain = choice.feed(frame.text)
            if plain:
                return (frame,)
            return (Frame.of(self._chunk(template.place.choice, delta)),) if delta else ()
        chunk = frame.readable()
        return (frame,) if chunk is None else self._read(frame, chunk)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole answer with what its texts mean."""
        try:
            answer = decode_chunk(body)
        except EngineError:
            return body
        choices = answer.get("choices")
        if not isinstance(choices, list):
            return body
        for choice in choices:
            message = choice.get("message") if isinstance(choice, dict) else None
            if isinstance(message, dict) and isinstance(text := message.get(TEXT), str):
                reader = self._reader()
                delta = merged([reader.feed(text)[0], reader.finish()])
                message[TEXT] = delta.pop(TEXT, None)
                for entry in delta.get("tool_calls", ()):
                    del entry["index"]
                message |= delta
                choice["finish_reason"] = reader.reason(choice.get("finish_reason"))
        return encode_json(answer)

    def _read(self, frame: Frame, chunk: dict[str, Any]) -> Sequence[Frame]:
        choices = chunk.get("choices")
        if not isinstance(choices, list) or not choices:
            return (frame,)
        self._envelope = {name: chunk[name] for name in _ENVELOPE if name in chunk}
        read = [self._read_choice(choice) for choice in choices]
        if all(new is old for new, old in zip(read, choices, strict=True)):
            return (frame,)
        return (Frame.of({**chunk, "choices": read}),)

    def _read_choice(self, choice: Any) -> Any:
        """Returns a choice of a chunk with what its text means; the very same one if that is the text itself."""
        delta = choice.get("delta") if isinstance(choice, dict) else None
        index = choice.get("index", 0) if isinstance(choice, dict) else None
        if not isinstance(index, int) or not isinstance(delta, dict | None):
            return choice
        reader = self._choice(index)
        delta = delta or {}
        text, reason = delta.get(TEXT), choice.get("finish_reason")
        parts: list[dict[str, Any]] = []
        plain = True
        if isinstance(text, str) and text:
            part, plain = reader.feed(text)
            parts.append(part)
        if reason is not None:
            rest = reader.finish()
            parts.append(rest)
            plain = plain and not rest
        if plain and (reason is None or reader.reason(reason) == reason):
            return choice
        others = {name: value for name, value in delta.items() if name != TEXT or value == ""}
        return {**choice, "delta": {**others, **merged(parts)}, "finish_reason": reader.reason(reason)}

    def _choice(self, index: int) -> RawChoice:
        found = self._choices.get(index)
        if found is None:
            found = self._choices[index] = self._reader()
        return found

    def _reader(self) -> RawChoice:
        return RawChoice(DraftingParser(self._open), own_ids=self._own_ids, reports=self._reports)

    def _chunk(self, index: int, delta: dict[str, Any]) -> dict[str, Any]:
        return {**self._envelope, "choices": [{"index": index, "delta": delta, "finish_reason": None}]}


class RawChoice:
    """One choice's text on its way through a parser."""

    def __init__(self, parser: StreamParser | DraftingParser, *, own_ids: bool, reports: bool) -> None:
        self._parser = parser
        self._own_ids = own_ids
        self._reports = reports
        self._called = False
        self._ended = False

    def feed(self, text: str) -> tuple[dict[str, Any], bool]:
        """Returns the delta that a text amounts to, and whether that is nothing but the text."""
        events = self._parser.feed(text)
        if len(events) == 1 and type(events[0]) is Content and events[0].text == text:
            return {TEXT: text}, True
        return self._delta(events), False

    def finish(self) -> dict[str, Any]:
        """Returns the delta of what was held back."""
        if self._ended:
            return {}
        self._ended = True
        return self._delta(self._parser.finish())

    def reason(self, reason: Any) -> Any:
        """Returns why the choice ended, in view of its calls."""
        return "tool_calls" if self._called and reason == "stop" else reason

    def _delta(self, events: Iterable[Event]) -> dict[str, Any]:
        texts: dict[str, list[str]] = {}
        calls: dict[int, dict[str, Any]] = {}
        for event in events:
            match event:
                case Reasoning(text):
                    texts.setdefault(_REASONING, []).append(text)
                case Content(text):
                    texts.setdefault(TEXT, []).append(text)
                case CallStart(call, id, name):
                    self._called = True
                    shown = id if self._own_ids else f"call_{uuid.uuid4().hex[:24]}"
                    function = {"name": name, "arguments": ""}
                    calls[call] = {"index": call, "id": shown, "type": "function", "function": function}
                case CallArguments(call, text):
                    entry = calls.setdefault(call, {"index": call, "function": {"arguments": ""}})
                    entry["function"]["arguments"] += text
                case Fault(violation) if self._reports and violation.hidden:
                    texts.setdefault(TEXT, []).append(violation.raw)
        delta: dict[str, Any] = {name: "".join(pieces) for name, pieces in texts.items()}
        return {**delta, "tool_calls": list(calls.values())} if calls else delta


def merged(parts: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns several deltas of one choice as one."""
    whole: dict[str, Any] = {}
    calls: dict[int, dict[str, Any]] = {}
    for part in parts:
        for name in (_REASONING, TEXT):
            if name in part:
                whole[name] = whole.get(name, "") + part[name]
        for entry in part.get("tool_calls", ()):
            known = calls.setdefault(entry["index"], entry)
            if known is not entry:
                known["function"]["arguments"] += entry["function"]["arguments"]
    return {**whole, "tool_calls": list(calls.values())} if calls else whole
