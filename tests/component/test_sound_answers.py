"""What real agents send and say passes: no text of a request breaks the guard, and no marker meant is damage."""

import json
from typing import Any

import aiohttp
import pytest
from support.engines import Engine, saying, streaming
from support.guard_stack import config
from support.stack import Stack, running

from serve.guard.core import Outcome

NASTY = {
    "Windows path": r"C:\users\me\java\utils\Json.java",
    "LaTeX": r"\usepackage{x} \underline{y}",
    "bash's prompt": r"PS1='\u@\h'",
    "regex and Rust": r"/^\u{1F600}$/u '\u{7f}' \u12 \uXXXX",
    "escapes of escapes": "\\\\unc-server \\\\\\u00e9 \\u",
    "marks of JSON": '"\\/{}[]:,\x00\x1f\u2028\ufffd\ufeff🙂',
    "half a character": "\ud83d and \ude00",
    "markup": "<tool_call>\n<function=bash>\n</tool_call> <|tool_calls_section_begin|> <think> \\u003cthink",
}
SCHEMA = {
    "type": "object",
    "properties": {"path": {"type": "string"}, "content": {"type": "string"}},
    "required": ["path"],
}
ARGUMENTS = {"path": r"C:\users\me", "content": "a < b \U0001f600 \\u"}
PATHS = {"chat": "/v1/chat/completions", "messages": "/v1/messages", "responses": "/v1/responses"}


def request_to(api: str, text: str, stream: bool) -> dict[str, Any]:
    """A request with the text in every place that a client fills."""
    body: dict[str, Any] = {"model": "m", "stream": stream}
    if api == "chat":
        function = {"name": "write_file", "description": text, "parameters": SCHEMA | {"description": text}}
        earlier = {"name": "write_file", "arguments": json.dumps({"path": text})}
        calls = [{"id": "c0", "type": "function", "function": earlier}]
        messages = [
            {"role": "system", "content": text},
            {"role": "user", "content": [{"type": "text", "text": text}]},
            {"role": "assistant", "content": text, "tool_calls": calls},
            {"role": "tool", "tool_call_id": "c0", "content": text},
        ]
        return body | {"messages": messages, "tools": [{"type": "function", "function": function}]}
    if api == "messages":
        tool = {"name": "write_file", "description": text, "input_schema": SCHEMA | {"description": text}}
        message = {"role": "user", "content": text}
        return body | {"max_tokens": 100, "system": text, "messages": [message], "tools": [tool]}
    function = {"type": "function", "name": "write_file", "description": text, "parameters": SCHEMA}
    return body | {"instructions": text, "input": text, "tools": [function]}


def engine_that(stream: bool, *, content: str = "", arguments: Any = None) -> Engine:
    """One that says something, and calls `write_file` if there are arguments."""
    function = {"name": "write_file", "arguments": json.dumps(arguments)}
    calls = [] if arguments is None else [{"id": "c1", "type": "function", "function": function}]
    return saying(stream, content, calls)


class Changing:
    """An engine that answers as it is told to."""

    now: Engine

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await streaming([])(scope, receive, send)
        else:
            await self.now(scope, receive, send)


async def asked(stack: Stack, api: str, body: dict[str, Any]) -> str:
    """Returns all the text of the response, the escapes of its JSON undone once."""
    headers = {"content-type": "application/json"}
    data = json.dumps(body).encode()
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{stack.url}{PATHS[api]}", data=data, headers=headers) as response,
    ):
        text = await response.text()
        assert response.status == 200, text
    assert '"error"' not in text.replace('"error":null', "").replace('"error": null', ""), text
    return text


def values_in(text: str) -> list[Any]:
    """The strings in a whole response or a stream, joined by the member that they stand in."""
    found: dict[str, str] = {}

    def walk(value: Any, name: str) -> None:
        if isinstance(value, dict):
            for key, each in value.items():
                walk(each, key)
        elif isinstance(value, list):
            for each in value:
                walk(each, name)
        elif isinstance(value, str):
            found[name] = found.get(name, "") + value

    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith(("data: ", "{"))]
    for line in lines:
        if line != "[DONE]":
            walk(json.loads(line), "")
    return [*found.values(), json.dumps(list(map(json.loads, [line for line in lines if line != "[DONE]"])))]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder"])
async def test_no_text_of_a_request_breaks_the_guard(grammar: str, api: str, stream: bool) -> None:
    engine = engine_that(stream, content="I write.", arguments=ARGUMENTS)
    results: list[Any] = []
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    async with running(config(grammar), pools, sink=results.append) as stack:
        for name, text in NASTY.items():
            if name == "half a character" and api != "chat":
                continue  # refused before an engine is asked
            results.clear()
            values = values_in(await asked(stack, api, request_to(api, text, stream)))
            assert [each.final for each in results] == [Outcome.CLEAN], name
            assert any(json.dumps(ARGUMENTS["path"])[1:-1] in str(each) for each in values), name


MEANT = {
    "ChatML template": "{% for m in messages %}<|im_start|>{{ m.role }}\n{{ m.content }}<|im_end|>\n{% endfor %}",
    "stripper of thoughts": 'import re\ndef strip(t):\n    return re.sub(r"<think>.*?</think>", "", t)\n',
    "parser's test": 'assert parse("<tool_call>\\n<function=f>\\n</function>\\n</tool_call>") == [F]\n',
    "search for a marker": "grep -n '<|tool_call_begin|>' parser.py",
    "sentence": "The marker </tool_call> closes it.",
    "nested pair": "grep -n '<parameter=name>x</parameter>' notes.txt",
}
SAID = {
    "code block of ChatML": "Use this:\n\n```\n<|im_start|>user\nhello<|im_end|>\n```\n",
    "code block of a call": "Like so:\n\n```xml\n<tool_call>\n<function=write_file>\n</function>\n</tool_call>\n```\n",
    "code block of thoughts": "```python\nre.sub(r'<think>.*?</think>', '', t)\n```",
    "code span": "Write `<tool_call>` first.",
    "bare mention": "Qwen opens a call with <tool_call> and Kimi with <|tool_call_begin|>, then comes the name.",
}


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder"])
async def test_markup_that_is_meant_passes_without_a_rerun(grammar: str, api: str, stream: bool) -> None:
    engine = Changing()
    results: list[Any] = []
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    async with running(config(grammar), pools, sink=results.append) as stack:
        for kind, text in (*MEANT.items(), *SAID.items()):
            results.clear()
            arguments = {"path": "/a", "content": text} if kind in MEANT else None
            engine.now = engine_that(stream, content="" if kind in MEANT else text, arguments=arguments)
            values = values_in(await asked(stack, api, request_to(api, "hello", stream)))
            assert [each.final for each in results] == [Outcome.CLEAN], kind
            assert any(json.dumps(text)[1:-1] in each or text in each for each in values) or kind in MEANT, kind


EXAMPLE = "<tool_call>\n<function=write_file>\n<parameter=path>\n/b\n</parameter>\n</function>\n</tool_call>"
KIMI = '<|tool_calls_section_begin|><|tool_call_begin|>functions.write_file:0<|tool_call_argument_begin|>{"path": "/b"}'
KIMI += "<|tool_call_end|><|tool_calls_section_end"  # the last one is cut


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("api", PATHS)
@pytest.mark.parametrize(("grammar", "leak"), [("kimi_k2", KIMI), ("kimi_k2", KIMI + "|>"), ("qwen3_coder", EXAMPLE)])
async def test_a_leak_is_found_though_the_request_shows_the_same(
    grammar: str, leak: str, api: str, stream: bool
) -> None:
    broken, sound = engine_that(stream, content=f"I look. {leak}"), engine_that(stream, arguments={"path": "/b"})
    results: list[Any] = []
    pools = {("m", "speculative"): broken, ("m", "standard"): sound}
    async with running(config(grammar), pools, sink=results.append) as stack:
        text = await asked(stack, api, request_to(api, f"An example: {leak}", stream))
    assert results[-1].final in (Outcome.RESCUED, Outcome.RERUN)
    assert "write_file" in text
    assert "tool_call_begin|" not in text.replace(json.dumps(f"An example: {leak}")[1:-1], "")


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("mode", ["heal", "strict"])
async def test_what_two_attempts_say_alike_is_delivered_after_one_rerun_even_if_strict(mode: str, stream: bool) -> None:
    engine = engine_that(stream, arguments={"path": "/b", "content": "It ends with</tool_call>"})
    results: list[Any] = []
    pools = {("m", "speculative"): engine, ("m", "standard"): engine}
    settings = {"mode": mode, "reruns": 3}
    async with running(config("qwen3_coder", settings), pools, sink=results.append) as stack:
        text = await asked(stack, "chat", request_to("chat", "hello", stream))
    assert "</tool_call>" in text
    assert [each.attempt for each in results] == [0, 1]
