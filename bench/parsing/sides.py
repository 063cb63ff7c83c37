"""The sides of the parser benchmark: each is fed the same deltas, and its output is read back for a check."""

from __future__ import annotations

import json
import re
import warnings
from collections.abc import Callable, Sequence
from typing import Any

from bench.parsing.streams import PROMPT, TOOLS, VOCABULARY
from serve.parsing import StreamParser, fold

Feed = Callable[[str, list[int], bool], Any]  # (text, token ids, is this the last delta) -> output
Open = Callable[[], Feed]
Arguments = Callable[[Sequence[Any]], str]  # all outputs -> the call's arguments


def machine(grammar: str) -> Open:
    """Returns our parser by itself."""

    def start() -> Feed:
        parser = StreamParser(grammar, TOOLS, thinking=True)

        def feed(text: str, ids: list[int], last: bool) -> Any:
            events = parser.feed(text, ids)
            return events + parser.finish() if last else events

        return feed

    return start


def machine_arguments(outputs: Sequence[Any]) -> str:
    """Returns the call's arguments from events."""
    return fold(event for events in outputs for event in events).tool_calls[0].arguments


def through_vllm(tool_parser: str, reasoning_parser: str) -> Open:
    """Returns a pair of vLLM's parsers by name, driven as by its API server; ours are among them as plug-ins."""
    with warnings.catch_warnings():
        warnings.simplefilter("ignore")  # torch warns while vLLM is imported
        from vllm.entrypoints.openai.chat_completion.protocol import ChatCompletionRequest
        from vllm.parser import ParserManager

        from serve.engine.vllm import tool_parsers as vllm_parsers
    vllm_parsers.register()
    request = ChatCompletionRequest(model="m", messages=[{"role": "user", "content": "x"}], tools=TOOLS)
    parser_class = ParserManager.get_parser(tool_parser, reasoning_parser, enable_auto_tools=True, tokenizer=VOCABULARY)
    prompt = VOCABULARY.encode(PROMPT)

    def start() -> Feed:
        parser = parser_class(VOCABULARY, request.tools)
        return lambda text, ids, last: parser.parse_delta(text, ids, request, prompt, finished=last)

    return start


def is_in_vllm(tool_parser: str) -> bool:
    """Returns whether vLLM has a tool parser of that name, our plug-ins included."""
    from vllm.tool_parsers import ToolParserManager

    from serve.engine.vllm import tool_parsers as vllm_parsers

    vllm_parsers.register()
    return tool_parser in ToolParserManager.list_registered()


def vllm_arguments(outputs: Sequence[Any]) -> str:
    """Returns the call's arguments from vLLM's deltas."""
    calls = [call for delta in outputs if delta for call in delta.tool_calls]
    return "".join(call.function.arguments or "" for call in calls if call.function)


_KIMI = re.compile(
    r"<\|tool_call_begin\|>\s*[\w.]+:\d+\s*<\|tool_call_argument_begin\|>(?P<arguments>.*?)(?:<\|tool_call_end\|>|\Z)",
    re.DOTALL,
)
_QWEN = re.compile(r"<function=[^>]*>(?P<body>.*?)(?P<end></function>|\Z)", re.DOTALL)
_QWEN_PARAMETER = re.compile(r"<parameter=(?P<key>[^>]*)>\n?(?P<value>.*?)(?P<end>\n?</parameter>|\n?\Z)", re.DOTALL)


def _kimi_so_far(text: str) -> str:
    match = _KIMI.search(text)
    return match["arguments"] if match else ""


def _qwen_so_far(text: str) -> str:
    match = _QWEN.search(text)
    if match is None:
        return ""
    parameters = [
        f"{json.dumps(parameter['key'])}: {_json_string(parameter['value'], whole=bool(parameter['end'].strip()))}"
        for parameter in _QWEN_PARAMETER.finditer(match["body"])
    ]
    return "{" + ", ".join(parameters) + ("}" if match["end"] else "")


def _json_string(text: str, whole: bool) -> str:
    return json.dumps(text, ensure_ascii=False)[: None if whole else -1]


REPARSED: dict[str, Callable[[str], str]] = {"kimi_k2": _kimi_so_far, "qwen3_coder": _qwen_so_far}


def reparse(grammar: str) -> Open:
    """Returns the naive fix for split markers: match all text so far at each step and return what is new.

    It handles well-formed calls with complete markers only, which is less than any real parser does.
    """
    so_far = REPARSED[grammar]

    def start() -> Feed:
        text = ""
        sent = 0

        def feed(delta: str, ids: list[int], last: bool) -> str:
            nonlocal text, sent
            text += delta
            arguments = so_far(text)
            new = arguments[sent:]
            sent = len(arguments)
            return new

        return feed

    return start
