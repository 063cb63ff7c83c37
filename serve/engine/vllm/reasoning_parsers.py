"""Our reasoning parsers for vLLM: the API process splits text with them, the engine core starts the grammar by them."""

from __future__ import annotations

from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.parser.engine.parser_engine import ReasoningEnd
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser

from serve.engine.vllm.delta_message import delta_message
from serve.engine.vllm.markers import keep_markers, log_violations, marker_ids, special_ids, turn_ids
from serve.engine.vllm.prompt_state import PromptState
from serve.parsing import GRAMMARS, ReasoningSplit
from serve.parsing.reasoning_split import Parts

_START = "<think>"
_END = "</think>"
_SWITCHES = frozenset(grammar.thinking_switch for grammar in GRAMMARS.values())


class SpecgateReasoningParser(ParserEngineReasoningAdapter):  # type: ignore[misc,unused-ignore]
    """Splits reasoning off one stream and passes everything after it to the tool parser unchanged.

    The prompt decides whether the output starts inside reasoning; vLLM shows it to `is_reasoning_end` before it
    generates (see `PromptState` for whole answers). Only thinking that the request turned off by the template's own
    switch outweighs it: a switch that the template does not read changes nothing about the prompt, and vLLM sets one of
    those for `reasoning_effort`.

    This is an engine adapter in name only: the engine core asks only adapters for a reasoning end that is itself
    content, such as the first marker of a call.

    Attributes:
        grammar: The model's tool-call format.
        implicit_ends: Markers that end reasoning and are content themselves.
    """

    grammar: ClassVar[str]
    implicit_ends: ClassVar[tuple[str, ...]]
    engine_based_streaming = True
    _prompt_state: ClassVar[PromptState] = PromptState()

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        ReasoningParser.__init__(self, tokenizer, *args, **kwargs)
        options = kwargs.get("chat_template_kwargs") or {}
        own = GRAMMARS[self.grammar].thinking_switch
        self._thinking = _switch(options, own)
        self._thinking_elsewhere = _switch(options, *_SWITCHES.difference({own}))
        ids = special_ids(tokenizer)
        self._start_id = ids.get(_START)
        self._end_id = ids.get(_END)
        self._implicit = frozenset(ids[text] for text in self.implicit_ends if text in ids)
        self._turns = turn_ids(tokenizer)
        self._marker_ids = marker_ids(tokenizer, self.grammar)
        self._prompt_open: bool | None = None  # None: the prompt was not shown, or has no marker of reasoning
        self._split: ReasoningSplit | None = None

    # Token ids: the prompt, and the engine core

    @property
    def reasoning_start_str(self) -> str:
        """The tag that opens reasoning."""
        return _START

    @property
    def reasoning_end_str(self) -> str:
        """The tag that closes reasoning."""
        return _END

    @property
    def reasoning_end_token_ids(self) -> frozenset[int]:
        """All tokens that end reasoning, including the first markers of calls."""
        return self._implicit | ({self._end_id} if self._end_id is not None else frozenset())

    @property
    def implicit_reasoning_end_token_ids(self) -> frozenset[int]:
        """The tokens that end reasoning and are content themselves; used by vLLM 0.33."""
        return self._implicit

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Returns True if the text after these tokens is not reasoning."""
        if self._thinking is False:
            return True
        last = self._last(input_ids)
        self._prompt_open = last is not None and last == self._start_id
        if last is None:
            return self._thinking is None and self._thinking_elsewhere is False
        return not self._prompt_open

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Returns True if the last step ended reasoning."""
        return self._thinking is False or not self.reasoning_end_token_ids.isdisjoint(delta_ids)

    def find_reasoning_end(self, token_ids: Sequence[int]) -> ReasoningEnd | None:
        """Returns the position of the first token that ends reasoning, and whether it is content itself."""
        ends = self.reasoning_end_token_ids
        if not ends:
            return None
        for place, token in enumerate(token_ids):
            if token in ends:
                return ReasoningEnd(place, token != self._end_id)
        return ReasoningEnd(len(token_ids), False)

    def extract_content_ids(self, input_ids: list[int]) -> list[int]:
        """Returns the tokens after the end of reasoning."""
        end = self.find_reasoning_end(input_ids)
        if end is None or end.offset == len(input_ids):
            return input_ids
        return input_ids[end.offset + (not end.implicit) :]

    def adjust_initial_state_from_prompt(self, prompt_token_ids: Sequence[int]) -> None:
        """Receives the prompt at the start of a stream."""
        self.is_reasoning_end(prompt_token_ids)

    def set_prompt_token_ids(self, prompt_token_ids: Sequence[int]) -> None:
        """Receives the prompt of any output, from vLLM 0.33 on."""
        self.is_reasoning_end(prompt_token_ids)

    def count_reasoning_tokens(self, token_ids: Sequence[int]) -> int:
        """Returns the number of reasoning tokens in an output."""
        ids = list(token_ids)
        opened = self._start_id in ids[:2]
        if not (opened or self._starts_inside(None)):
            return 0
        end = self.find_reasoning_end(ids)
        return (len(ids) if end is None else end.offset) - opened

    def _last(self, input_ids: Sequence[int]) -> int | None:
        """Returns the last token of the current turn that opens or ends reasoning."""
        ends = self.reasoning_end_token_ids
        for token in reversed(input_ids):
            if token in ends or token == self._start_id:
                return token
            if token in self._turns:
                return None
        return None

    # Text: the API process

    def adjust_request(self, request: Any) -> Any:
        """Have vLLM keep the markers in the text."""
        return keep_markers(request)

    def extract_reasoning(self, model_output: str, request: Any) -> tuple[str | None, str | None]:
        """Split a complete output."""
        split = ReasoningSplit(self.grammar, self._starts_inside(request, model_output), self._marker_ids)
        first = split.feed(model_output)
        last = split.finish()
        log_violations(self.grammar, [*first.violations, *last.violations])
        return first.reasoning + last.reasoning or None, first.rest + last.rest or None

    def extract_reasoning_streaming(
        self,
        previous_text: str,
        current_text: str,
        delta_text: str,
        previous_token_ids: Sequence[int],
        current_token_ids: Sequence[int],
        delta_token_ids: Sequence[int],
    ) -> DeltaMessage | None:
        """Split the next part of a stream; only the delta is used."""
        if self._split is None:
            self._split = ReasoningSplit(self.grammar, self._starts_inside(None), self._marker_ids)
        return self._delta(self._split.feed(delta_text, delta_token_ids))

    def has_engine_confirmed_reasoning_end(self) -> bool:
        """Returns True once the text has left reasoning."""
        return self._split is not None and self._split.ended

    def finish_streaming(self) -> DeltaMessage | None:
        """Returns the text that was held back at the end of a stream."""
        return self._delta(self._split.finish()) if self._split else None

    def get_streaming_fallback_content(self, text: str, request: Any) -> str | None:
        """Returns None: reasoning that never ended stays reasoning."""
        return None

    def _delta(self, parts: Parts) -> DeltaMessage | None:
        log_violations(self.grammar, parts.violations)
        return delta_message(reasoning=parts.reasoning, content=parts.rest)

    def _starts_inside(self, request: Any, text: str = "") -> bool:
        """Returns True if the output starts inside reasoning: by the prompt, else the request, else the output."""
        if self._thinking is False:
            return False
        if request is not None:
            if self._prompt_open is None:
                self._prompt_open = self._prompt_state.get(request)
            else:
                self._prompt_state.set(request, self._prompt_open)
        if self._prompt_open is not None:
            return self._prompt_open
        thinking = self._thinking_elsewhere if self._thinking is None else self._thinking
        return bool(thinking) or _END in text


def _switch(options: Mapping[str, Any], *names: str) -> bool | None:
    """Returns what the first given of these switches says; None if the request uses none of them."""
    return next((bool(options[name]) for name in names if options.get(name) is not None), None)


class KimiK2ReasoningParser(SpecgateReasoningParser):
    grammar = "kimi_k2"
    implicit_ends = ("<|tool_calls_section_begin|>", "<|tool_call_section_begin|>", "<|tool_call_begin|>")


class Qwen3CoderReasoningParser(SpecgateReasoningParser):
    grammar = "qwen3_coder"
    implicit_ends = ("<tool_call>",)


class HermesReasoningParser(SpecgateReasoningParser):
    grammar = "hermes"
    implicit_ends = ("<tool_call>",)


REASONING_PARSERS: dict[str, type[SpecgateReasoningParser]] = {
    f"specgate_{parser.grammar}": parser
    for parser in (KimiK2ReasoningParser, Qwen3CoderReasoningParser, HermesReasoningParser)
}
