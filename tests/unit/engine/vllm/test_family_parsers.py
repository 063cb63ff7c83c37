"""A plug-in for every grammar, made of the grammar itself, inside vLLM's own parser classes."""

from __future__ import annotations

import json
from typing import Any

import pytest

from serve.parsing import GRAMMARS
from serve.parsing.families import thinking_of
from tests.support.written import ARGUMENTS, WRITTEN
from tests.unit.engine.vllm.parser_harness import request, streamed, vllm_parsers, whole

PARAMETERS = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path", "content"],
}
TOOL = {"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}


def output(grammar: str) -> tuple[str, dict[str, Any]]:
    """What a model writes that thinks, if the template's arguments have a say in it, and those arguments."""
    thinking = thinking_of(grammar)
    arguments = {thinking.switch: thinking.switches[thinking.switch][0]} if thinking.switch else {}
    call = WRITTEN[grammar]
    if grammar == "harmony":
        thought = "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"
        return f"{thought}<|channel|>commentary<|message|>I write.<|end|><|start|>assistant{call}", arguments
    if grammar == "kimi_k3":
        said = "<|open|>response<|sep|>I write.<|close|>response<|sep|>"
        return f"Hm.<|close|>think<|sep|>{said}{call}<|close|>message<|sep|>", arguments
    start, end = GRAMMARS[grammar].thinking_tags
    opened = start if thinking.start == "model" else ""
    return f"{opened}Hm.{end}I write.{call}", arguments


def read(found: tuple[Any, ...]) -> tuple[Any, ...]:
    reasoning, content, calls = found
    return reasoning, content.strip(), [(name, json.loads(arguments)) for name, arguments in calls]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_plug_in_of_each_grammar_reads_reasoning_content_and_call(grammar: str) -> None:
    text, arguments = output(grammar)
    asked = request(tools=[TOOL])
    prompt = f"<|im_start|>assistant{GRAMMARS[grammar].thinking_tags[0]}"
    expected = ("Hm.", "I write.", [("write_file", ARGUMENTS)])
    assert read(whole(grammar, text, asked, prompt, **arguments)) == expected
    for size in (1, 7, 100_000):
        assert read(streamed(grammar, text, asked, prompt, size=size, **arguments)) == expected


def test_vllm_finds_a_parser_of_each_kind_for_each_grammar() -> None:
    assert vllm_parsers.TOOL_PARSERS.keys() == {f"specgate_{grammar}" for grammar in GRAMMARS}
    assert vllm_parsers.REASONING_PARSERS.keys() == vllm_parsers.TOOL_PARSERS.keys()
