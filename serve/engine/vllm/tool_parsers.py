"""Our parsers as vLLM plug-ins: tool and reasoning parsers by name, for the API process and the engine core.

Selected with `--tool-call-parser` and `--reasoning-parser`. vLLM imports this file if it is given as
`--tool-parser-plugin` or `--reasoning-parser-plugin`, and in every process through the `vllm.general_plugins` entry
point. vLLM creates an instance for every choice of every request: an instance holds the state of one stream.
"""

from __future__ import annotations

import re
import uuid
from collections.abc import Iterator, Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import (
    DeltaFunctionCall,
    DeltaMessage,
    DeltaToolCall,
    ExtractedToolCallInformation,
    FunctionCall,
    ToolCall,
)
from vllm.reasoning import ReasoningParserManager
from vllm.tool_parsers import ToolParserManager
from vllm.tool_parsers.abstract_tool_parser import ToolParser
from vllm.tool_parsers.structural_tag_registry import SUPPORTED_STRUCTURAL_TAG_MODELS

from serve.engine.vllm.markers import class_name, declared, keep_markers, log_violations, marker_ids, shows_hidden
from serve.engine.vllm.reasoning_parsers import REASONING_PARSERS, delta_message
from serve.parsing import (
    GRAMMARS,
    CallArguments,
    CallStart,
    Content,
    Event,
    Fault,
    ParsedMessage,
    Reasoning,
    StreamParser,
    fold,
)
from serve.parsing.families import OUR_PARSER

_CALL = "<|tool_call_begin|>"
# Violations of a tool's schema, where the markup itself is well-formed.
_SCHEMA_VIOLATIONS = {"unknown_tool", "unknown_argument", "missing_argument", "duplicate_argument"}


class SpecgateToolParser(ToolParser):  # type: ignore[misc,unused-ignore]
    """A tool parser over one of our grammars.

    Attributes:
        ids_are_the_models: True if call ids are part of the model's own text.
        skip_reasoning_parsing: Set by vLLM if no reasoning parser is configured.
    """

    grammar: ClassVar[str]
    ids_are_the_models: ClassVar[bool] = False
    engine_based_streaming = True
    skip_reasoning_parsing = False

    def __init_subclass__(cls, **kwargs: Any) -> None:
        super().__init_subclass__(**kwargs)
        # Otherwise vLLM would ask the model for generic JSON with `required` and named tools.
        cls.supports_required_and_named = False

    def __init__(self, tokenizer: Any, tools: Sequence[Any] | None = None) -> None:
        super().__init__(tokenizer, list(tools) if tools else None)
        self._declared = declared(self.tools)
        self._marker_ids = marker_ids(tokenizer, self.grammar)
        self._stream: StreamParser | None = None
        self._no_calls = False
        self._shows_hidden = False

    def adjust_request(self, request: Any) -> Any:
        """Have vLLM keep the markers in the text."""
        return keep_markers(super().adjust_request(request))

    def extract_tool_calls(self, model_output: str, request: Any) -> ExtractedToolCallInformation:
        """Parse a complete output."""
        self._shows_hidden = shows_hidden(request)
        message = self._whole([(model_output, ())])
        if any(violation.kind not in _SCHEMA_VIOLATIONS for violation in message.violations):
            # vLLM does not pass the token ids of a complete output. Without them, a marker inside a JSON string is
            # text, and an unclosed string swallows all markers after it; in a stream the ids tell them apart. To get
            # the same result here, parse an unclean output again and take every marker for its token.
            message = self._whole(list(self._marked(model_output)))
        log_violations(self.grammar, message.violations)
        calls = [
            ToolCall(id=self._id(call.id), function=FunctionCall(name=call.name, arguments=call.arguments))
            for call in message.tool_calls
        ]
        if request.tool_choice == "none":
            calls = []
        return ExtractedToolCallInformation(tools_called=bool(calls), tool_calls=calls, content=message.content)

    def extract_tool_calls_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
        request: Any,
    ) -> DeltaMessage | None:
        """Parse the next part of a stream; only the delta is used."""
        if self._stream is None:
            self._stream = self._parser()
            self._shows_hidden = shows_hidden(request)
            self._no_calls = request.tool_choice == "none"
        return self._delta(self._stream.feed(delta_text, delta_token_ids))

    def finish_streaming(self) -> DeltaMessage | None:
        """Returns what was held back at the end of a stream."""
        return self._delta(self._stream.finish()) if self._stream else None

    def _whole(self, pieces: Sequence[tuple[str, Sequence[int]]]) -> ParsedMessage:
        parser = self._parser()
        events = [event for text, ids in pieces for event in parser.feed(text, ids)]
        return fold(self._shown([*events, *parser.finish()]))

    def _shown(self, events: Sequence[Event]) -> Iterator[Event]:
        """Yield the events and, if the request asks for it, the text of each hidden violation as content."""
        for event in events:
            yield event
            if self._shows_hidden and isinstance(event, Fault) and event.violation.hidden:
                yield Content(event.violation.raw)

    def _marked(self, text: str) -> Iterator[tuple[str, Sequence[int]]]:
        """Yield the text cut at its markers, each marker with its token id."""
        ids = {marker: id for id, marker in self._marker_ids.items()}
        for piece in re.split("|".join(f"({re.escape(marker)})" for marker in ids), text):
            if piece:
                yield piece, (ids[piece],) if piece in ids else ()

    def _parser(self) -> StreamParser:
        return StreamParser(
            self.grammar,
            self._declared,
            # Without tools in the request nothing is a call: any markup is text that the user asked for.
            calls=bool(self._declared),
            marker_ids=self._marker_ids,
            behind_reasoning=not self.skip_reasoning_parsing,
        )

    def _id(self, id: str) -> str:
        return id if self.ids_are_the_models else f"call_{uuid.uuid4().hex[:24]}"

    def _delta(self, events: Sequence[Event]) -> DeltaMessage | None:
        """Returns one delta for all events of a step, with one entry per call."""
        log_violations(self.grammar, [event.violation for event in events if isinstance(event, Fault)])
        events = list(self._shown(events))
        content = "".join(event.text for event in events if isinstance(event, Content))
        reasoning = "".join(event.text for event in events if isinstance(event, Reasoning))
        calls = [] if self._no_calls else self._entries(events)
        return delta_message(content=content, reasoning=reasoning, tool_calls=calls)

    def _entries(self, events: Sequence[Event]) -> list[DeltaToolCall]:
        entries: dict[int, DeltaToolCall] = {}
        for event in events:
            if isinstance(event, CallStart):
                function = DeltaFunctionCall(name=event.name, arguments="")
                entries[event.call] = DeltaToolCall(
                    index=event.call, id=self._id(event.id), type="function", function=function
                )
            elif isinstance(event, CallArguments):
                _append(entries, event.call, event.text)
        return list(entries.values())


def _append(calls: dict[int, DeltaToolCall], call: int, text: str) -> None:
    """Add arguments to a call's entry; an entry that continues a call holds nothing else."""
    entry = calls.get(call)
    if entry is None:
        calls[call] = DeltaToolCall(index=call, function=DeltaFunctionCall(arguments=text))
    else:
        entry.function.arguments += text


class KimiK2ToolParser(SpecgateToolParser):
    grammar = "kimi_k2"
    structural_tag_model = GRAMMARS["kimi_k2"].structural_tag
    ids_are_the_models = True

    def get_structural_tag(self, request: Any, **options: Any) -> Any:
        """Returns vLLM's tag, extended so that a call without a section also starts the grammar (NVFP4 variants)."""
        tag = super().get_structural_tag(request, **options)
        if tag is None or tag.format.type != "triggered_tags" or _CALL in tag.format.triggers:
            return tag
        bare = [call for section in tag.format.tags for call in getattr(section.content, "tags", ())]
        if bare:
            tag.format.triggers = [*tag.format.triggers, _CALL]
            tag.format.tags = [*tag.format.tags, *bare]
            tag.format.excludes = [text for text in tag.format.excludes if text != _CALL]
        return tag


def _tool_parser(grammar: str) -> type[SpecgateToolParser]:
    tag = GRAMMARS[grammar].structural_tag
    known = tag if tag in SUPPORTED_STRUCTURAL_TAG_MODELS else None
    name = f"{class_name(grammar)}ToolParser"
    return type(name, (SpecgateToolParser,), {"grammar": grammar, "structural_tag_model": known})


_OWN = {parser.grammar: parser for parser in (KimiK2ToolParser,)}
TOOL_PARSERS: dict[str, type[SpecgateToolParser]] = {
    f"{OUR_PARSER}{grammar}": _OWN.get(grammar) or _tool_parser(grammar) for grammar in GRAMMARS
}


def register() -> None:
    """Add our parsers to vLLM's registries; safe to call again."""
    for name, tool_parser in TOOL_PARSERS.items():
        ToolParserManager.register_module(name, module=tool_parser)
    for name, reasoning_parser in REASONING_PARSERS.items():
        ReasoningParserManager.register_module(name, module=reasoning_parser)


register()
