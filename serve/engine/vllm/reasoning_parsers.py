"""Our reasoning parsers for vLLM: the API process splits text with them, the engine core starts the grammar by them."""

from __future__ import annotations

import weakref
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, ClassVar

from vllm.entrypoints.generate.base.protocol import DeltaMessage
from vllm.parser.engine.adapters import ParserEngineReasoningAdapter
from vllm.parser.engine.parser_engine import ReasoningEnd
from vllm.reasoning.abs_reasoning_parsers import ReasoningParser

from serve.engine.vllm.markers import (
    class_name,
    keep_markers,
    log_violations,
    marker_ids,
    special_ids,
    token_sequence,
    turn_ids,
)
from serve.parsing import GRAMMARS, ReasoningSplit
from serve.parsing.families import OUR_PARSER, USUAL, thinking_of
from serve.parsing.parser import Parts


def delta_message(**fields: Any) -> DeltaMessage | None:
    """Returns a delta with the non-empty fields, or None if all are empty: vLLM then sends no chunk."""
    present = {name: value for name, value in fields.items() if value}
    return DeltaMessage(**present) if present else None


class PromptState:
    """The state in which prompts leave the model, by request: inside reasoning or not.

    vLLM shows the prompt of a whole answer to the parser of the first choice only, and makes a new parser for every
    choice; this store passes the result on to the others.

    Requests cannot be the keys of a `WeakKeyDictionary`: pydantic models compare by value and are therefore not
    hashable. Entries are keyed by `id()` instead, and a finalizer removes an entry before its id can be reused.
    """

    def __init__(self) -> None:
        self._open: dict[int, bool] = {}

    def get(self, request: Any) -> bool | None:
        """Returns True if reasoning is open, False if it is closed, None if no parser has seen the prompt."""
        return self._open.get(id(request))

    def set(self, request: Any, is_open: bool) -> None:
        """Store the state of a request's prompt; the first one counts."""
        key = id(request)
        if key not in self._open:
            self._open[key] = is_open
            weakref.finalize(request, self._open.pop, key, None)


class SpecgateReasoningParser(ParserEngineReasoningAdapter):  # type: ignore[misc,unused-ignore]
    """Splits reasoning off one stream and passes everything after it to the tool parser unchanged.

    Where a family's template opens reasoning with one token, the prompt decides whether the output starts inside it;
    vLLM shows it to `is_reasoning_end` before it generates (see `PromptState` for whole answers). Only thinking that
    the request turned off by the template's own switch outweighs it: a switch that the template does not read changes
    nothing about the prompt, and vLLM sets one of those for `reasoning_effort`. For all other families the template's
    arguments decide alone: their prompts say nothing, or hold the tags in their instructions.

    This is an engine adapter in name only: the engine core asks only adapters for a reasoning end that is itself
    content, such as the first marker of a call.

    Attributes:
        grammar: The model's tool-call format. Its `call_openers` end reasoning and are content themselves.
    """

    grammar: ClassVar[str]
    engine_based_streaming = True
    _prompt_state: ClassVar[PromptState] = PromptState()

    def __init__(self, tokenizer: Any, *args: Any, **kwargs: Any) -> None:
        ReasoningParser.__init__(self, tokenizer, *args, **kwargs)
        options = kwargs.get("chat_template_kwargs") or {}
        grammar, thinking = GRAMMARS[self.grammar], thinking_of(self.grammar)
        own = thinking.switch or ""
        self._start, self._end = grammar.thinking_tags
        self._thinking = _switch(options, own)
        self._thinking_elsewhere = _switch(options, *USUAL.switches.keys() - {own})
        ids = special_ids(tokenizer)
        self._start_id = ids.get(self._start)
        self._end_id = ids.get(self._end)
        self._end_ids = token_sequence(tokenizer, self.grammar, self._end)
        by_prompt = thinking.start == "switch" and not thinking.may_think and self._start_id is not None
        self._starts: bool | None = None if by_prompt else thinking.starts_inside(options)
        opens_itself = thinking.start in ("model", "channel") or thinking.may_think
        self._may_open = opens_itself and thinking.thinks(options)
        self._implicit = frozenset(ids[text] for text in grammar.call_openers if text in ids)
        self._turns = turn_ids(tokenizer)
        self._marker_ids = marker_ids(tokenizer, self.grammar)
        self._prompt_open: bool | None = None  # None: the prompt was not shown, or has no marker of reasoning
        self._split: ReasoningSplit | None = None

    # Token ids: the prompt, and the engine core

    @property
    def reasoning_start_str(self) -> str:
        """The tag that opens reasoning."""
        return self._start

    @property
    def reasoning_end_str(self) -> str:
        """The tag that closes reasoning."""
        return self._end

    @property
    def reasoning_end_token_ids(self) -> frozenset[int]:
        """All tokens that end reasoning alone, including the first markers of calls; none if its end is several."""
        if len(self._end_ids) > 1:
            return frozenset()  # vLLM then asks `is_reasoning_end_streaming`, which knows what came before
        return self._implicit | ({self._end_id} if self._end_id is not None else frozenset())

    @property
    def implicit_reasoning_end_token_ids(self) -> frozenset[int]:
        """The tokens that end reasoning and are content themselves; used by vLLM 0.33."""
        return self._implicit

    def is_reasoning_end(self, input_ids: Sequence[int]) -> bool:
        """Returns True if the text after these tokens is not reasoning."""
        if self._starts is not None:
            return not (self._starts or self._may_open)
        if self._thinking is False:
            return True
        last = self._last(input_ids)
        self._prompt_open = last is not None and last == self._start_id
        if last is None:
            return self._thinking is None and self._thinking_elsewhere is False
        return not self._prompt_open

    def is_reasoning_end_streaming(self, input_ids: Sequence[int], delta_ids: Iterable[int]) -> bool:
        """Returns True if the last step ended reasoning."""
        if self._starts is None and self._thinking is False:
            return True
        delta = list(delta_ids)
        if len(self._end_ids) < 2:
            return not self.reasoning_end_token_ids.isdisjoint(delta)
        if not self._implicit.isdisjoint(delta):
            return True
        before = list(input_ids[-len(self._end_ids) - len(delta) :])
        return _place_of(self._end_ids, before if before[-len(delta) :] == delta else before + delta) is not None

    def find_reasoning_end(self, token_ids: Sequence[int]) -> ReasoningEnd | None:
        """Returns the position of the first token that ends reasoning, and whether it is content itself."""
        ends = self._implicit | frozenset(self._end_ids[:1] if len(self._end_ids) == 1 else ())
        if not ends and not self._end_ids:
            return None
        places = (place for place, token in enumerate(token_ids) if token in ends)
        place = next(places, len(token_ids))
        if len(self._end_ids) > 1 and (begin := _place_of(self._end_ids, token_ids)) is not None and begin < place:
            return ReasoningEnd(begin + len(self._end_ids) - 1, False)
        return ReasoningEnd(place, place < len(token_ids) and token_ids[place] != self._end_id)

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
        if self._starts is not None:
            return self._starts
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
        return bool(thinking) or self._end in text


def _place_of(sequence: Sequence[int], token_ids: Sequence[int]) -> int | None:
    """Returns where a sequence of tokens begins among others; None if they do not hold it."""
    length = len(sequence)
    places = range(len(token_ids) - length + 1)
    return next((place for place in places if tuple(token_ids[place : place + length]) == tuple(sequence)), None)


def _switch(options: Mapping[str, Any], *names: str) -> bool | None:
    """Returns what the first given of these switches says; None if the request uses none of them."""
    return next((bool(options[name]) for name in names if options.get(name) is not None), None)


REASONING_PARSERS: dict[str, type[SpecgateReasoningParser]] = {
    f"{OUR_PARSER}{grammar}": type(
        f"{class_name(grammar)}ReasoningParser", (SpecgateReasoningParser,), {"grammar": grammar}
    )
    for grammar in GRAMMARS
}
