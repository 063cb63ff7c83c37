"""Request fields: which of them vLLM refuses, ignores or treats as advisories say."""

from collections.abc import Callable, Iterator, Mapping
from functools import partial
from inspect import signature
from itertools import product
from types import SimpleNamespace
from typing import Any

from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
from vllm.entrypoints.openai.completion.protocol import CompletionRequest
from vllm.exceptions import VLLMValidationError
from vllm.sampling_params import SamplingParams

from lab.claims.formats import FORMATS, Tokenizer
from lab.claims.signature import accepted

_MESSAGES = [{"role": "user", "content": "hi"}]
_GUIDED = {
    "guided_json": {"type": "object"},
    "guided_regex": "a+",
    "guided_choice": ["a", "b"],
    "guided_grammar": 'root ::= "a"',
}


def refusals() -> Iterator[bool]:
    """Yields for each set of sampling parameters whether an engine with a drafter treats it as the advisory says."""
    temperatures = (0.2, 1.0)
    refused: list[dict[str, Any]] = [
        *({"logit_bias": {5: bias}, "temperature": heat} for bias, heat in product((-100, 0, 1), (0.0, *temperatures))),
        *({"min_p": least, "temperature": heat} for least, heat in product((0.001, 0.05, 1.0), temperatures)),
    ]
    accepted: list[dict[str, Any]] = [
        {"min_p": 0.05, "temperature": 0.0},
        {"min_p": 0.0},
        {"logit_bias": {}},
        {"frequency_penalty": 0.5},
        {"presence_penalty": 0.5},
        {"repetition_penalty": 1.1},
        {"bad_words": ["x"]},
    ]
    yield from (_is_refused(parameters) for parameters in refused)
    yield from (not _is_refused(parameters) for parameters in accepted)


def _is_refused(parameters: Mapping[str, Any]) -> bool:
    drafter: Any = SimpleNamespace(enable_adaptive_verification=False)  # 0.28 asks for that
    try:
        SamplingParams(**parameters)._validate_spec_decode(drafter)
    except (ValueError, VLLMValidationError):
        return True
    return False


def guided() -> Iterator[bool]:
    """Yields for each removed field whether a request that holds it is accepted and not constrained."""
    for name, value in _GUIDED.items():
        chat = ChatCompletionRequest.model_validate({"model": "m", "messages": _MESSAGES, name: value})
        text = CompletionRequest.model_validate({"model": "m", "prompt": "hi", name: value})
        yield from (request.to_sampling_params(8, {}).structured_outputs is None for request in (chat, text))


def hidden_reasoning() -> Iterator[bool]:
    """Yields whether a request that hides its reasoning is constrained from its first token on."""
    for fields in ({}, {"response_format": {"type": "json_object"}}):
        request = ChatCompletionRequest.model_validate(
            {"model": "m", "messages": _MESSAGES, "include_reasoning": False, **fields}
        )
        resolve = getattr(request, "resolve_reasoning_ended", None)  # from 0.31 or 0.32 on
        yield bool(resolve and resolve(None, []))


def tools_beside_a_format() -> Iterator[bool]:
    """Yields whether tools on auto leave room for the grammar of a JSON schema only."""
    from vllm.parser import ParserManager

    schema = {"type": "json_schema", "json_schema": {"name": "a", "schema": {"type": "object"}}}
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    for name in ("kimi_k2", "qwen3_coder"):
        tokenizer = Tokenizer(FORMATS[name].markers)
        request = ChatCompletionRequest.model_validate(
            {"model": "m", "messages": _MESSAGES, "tools": [tool], "tool_choice": "auto", "response_format": schema}
        )
        options = accepted(ParserManager.get_parser, {"enable_auto_tools": True, "tokenizer": tokenizer})
        make = ParserManager.get_parser(name, None, **options)
        assert make is not None
        parser = make(tokenizer, request.tools) if len(signature(make).parameters) > 1 else make(tokenizer)
        parser.adjust_request(request)
        outputs = request.to_sampling_params(8, {}).structured_outputs
        yield outputs is not None and outputs.json is not None and outputs.structural_tag is None


def huge_n() -> Iterator[bool]:
    """Yields whether a request for a huge number of choices is accepted."""
    for count in (100_000, 10**9):
        yield _is_accepted(partial(SamplingParams, n=count))


def template_switches() -> Iterator[bool]:
    """Yields whether a request can have the chat template tokenized in the event loop, or replaced."""
    from vllm.renderers.hf import resolve_chat_template_kwargs

    for name, value in (("tokenize", True), ("chat_template", "{{ 1 }}")):
        tokenizer: Any = Tokenizer(())
        yield _is_accepted(partial(resolve_chat_template_kwargs, tokenizer, "{{ 1 }}", {name: value}))


def _is_accepted(ask: Callable[[], Any]) -> bool:
    try:
        ask()
    except (ValueError, VLLMValidationError):
        return False
    return True
