"""Drives our plug-ins inside vLLM's own parser classes, with a tokenizer of one token for each marker or character."""

from __future__ import annotations

import warnings
from collections.abc import Iterator
from typing import Any

import pytest

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
    from vllm.parser import ParserManager

    from serve.engine.vllm import tool_parsers as vllm_parsers

from serve.parsing import GRAMMARS
from tests.unit.parsing import cases

vllm_parsers.register()
SPECIAL = sorted(
    {text for grammar in GRAMMARS.values() for text in grammar.lexicon.kinds} - {"</function>", "</parameter>"}
    | {"<|im_start|>", "<|im_end|>", "<|im_assistant|>", "<|im_middle|>"}
)


class Tokenizer:
    """Special tokens first, then one id for each character."""

    chat_template = None

    def get_vocab(self) -> dict[str, int]:
        return {text: number for number, text in enumerate(SPECIAL)}

    def encode(self, text: str, **_: Any) -> list[int]:
        vocabulary = self.get_vocab()
        return [vocabulary.get(unit, 1000 + ord(unit[0])) for unit in self.units(text)]

    def decode(self, ids: list[int], **_: Any) -> str:
        return "".join(SPECIAL[token] if token < 1000 else chr(token - 1000) for token in ids)

    @staticmethod
    def units(text: str) -> Iterator[str]:
        for unit in cases.units(text):
            yield from [unit] if unit in SPECIAL else unit


TOKENIZER = Tokenizer()
TOOL = {
    "type": "function",
    "function": {
        "name": "get_weather",
        "strict": True,
        "parameters": {
            "type": "object",
            "properties": {"city": {"type": "string"}, "days": {"type": "integer"}},
            "required": ["city"],
        },
    },
}
KIMI_CALL = (
    '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Bern", "days": 2}<|tool_call_end|>'
)
OUTPUTS = {
    "kimi_k2": f"Well.</think>Look:<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|> Done.",
    "qwen3_coder": "Well.</think>Look:<tool_call>\n<function=get_weather>\n<parameter=city>\nBern\n</parameter>\n"
    "<parameter=days>\n2\n</parameter>\n</function>\n</tool_call> Done.",
    "hermes": 'Well.</think>Look:<tool_call>\n{"name": "get_weather", "arguments": {"city": "Bern", "days": 2}}\n'
    "</tool_call> Done.",
}
THINKING = "<|im_start|>assistant<think>"
NOT_THINKING = "<|im_start|>assistant<think></think>"


def request(**fields: Any) -> ChatCompletionRequest:
    return ChatCompletionRequest(
        **{"model": "m", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]} | fields
    )


def parser(grammar: str, asked: ChatCompletionRequest, reasoning: bool = True, **template: Any) -> Any:
    name = f"specgate_{grammar}"
    made = ParserManager.get_parser(name, name if reasoning else None, enable_auto_tools=True, tokenizer=TOKENIZER)
    return made(TOKENIZER, asked.tools, chat_template_kwargs=template)


def whole(grammar: str, text: str, asked: ChatCompletionRequest, prompt: str = THINKING, **how: Any) -> tuple[Any, ...]:
    made = parser(grammar, asked, **how)
    made.is_reasoning_end(TOKENIZER.encode(prompt))
    reasoning, content, calls = made.parse(text, asked, enable_auto_tools=True)
    return reasoning, content or None, [(call.name, call.arguments) for call in calls or []]


def streamed(
    grammar: str,
    text: str,
    asked: ChatCompletionRequest,
    prompt: str = THINKING,
    size: int = 1,
    lag: int = 0,
    **how: Any,
) -> tuple[Any, ...]:
    """Fold vLLM's deltas as a client does; `lag` characters come later than their tokens, as with stop strings."""
    made = parser(grammar, asked, **how)
    units = list(Tokenizer.units(text))
    reasoning, content, calls, shown = "", "", {}, 0
    for place in range(0, len(units), size):
        last = place + size >= len(units)
        ready = len("".join(units[: place + size])) - (0 if last else lag)
        delta = made.parse_delta(
            text[shown : max(ready, shown)],
            TOKENIZER.encode("".join(units[place : place + size])),
            asked,
            TOKENIZER.encode(prompt),
            finished=last,
        )
        shown = max(ready, shown)
        if delta is None:
            continue
        sent = delta.model_dump(exclude_unset=True)
        reasoning += sent.get("reasoning") or ""
        content += sent.get("content") or ""
        for entry in sent.get("tool_calls") or []:
            if entry["index"] in calls:
                assert set(entry) == {"index", "function"}
                assert set(entry["function"]) == {"arguments"}
            else:
                assert entry["id"]
                assert entry["type"] == "function"
                assert entry["function"]["name"]
                calls[entry["index"]] = [entry["function"]["name"], ""]
            calls[entry["index"]][1] += entry["function"]["arguments"]
    return reasoning or None, content or None, [tuple(calls[index]) for index in sorted(calls)]
