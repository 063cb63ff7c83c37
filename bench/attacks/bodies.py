# ruff: noqa: E501 - tables
"""Bodies that are long to read, odd, or of wrong types in every field of every API."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Iterator
from typing import Any

from bench.attacks.answers import fault
from bench.attacks.attack import Attack
from bench.attacks.lab import CHAT, COUNT, MESSAGES, RESPONSES, TEXT, Gateway
from lab.attacks.bombs import HISTORIES, MEMBERS

_EXPLAIN = "/v1/route/explain"
_AT_ONCE = 16

_FULL: dict[str, dict[str, Any]] = {
    CHAT: {
        "model": "m", "stream": True, "stream_options": {"include_usage": True}, "n": 1, "stop": ["x"],
        "max_tokens": 5, "temperature": 0.5, "top_p": 1, "seed": 1, "logprobs": True, "top_logprobs": 2,
        "messages": [
            {"role": "system", "content": "s"},
            {"role": "user", "content": [{"type": "text", "text": "x"},
                                         {"type": "image_url", "image_url": {"url": "data:x", "detail": "low"}}]},
            {"role": "assistant", "content": None, "reasoning": "r", "tool_calls": [
                {"id": "c", "type": "function", "function": {"name": "f", "arguments": "{}"}}]},
            {"role": "tool", "tool_call_id": "c", "content": "ok"},
            {"role": "user", "content": "hello"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "description": "d", "strict": True,
                                                    "parameters": {"type": "object"}}}],
        "tool_choice": "auto", "parallel_tool_calls": True, "logit_bias": {"1": 1}, "reasoning_effort": "low",
        "response_format": {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": {}}},
        "chat_template_kwargs": {"thinking": True}, "vllm_xargs": {"a": 1}, "structured_outputs": {"json": {}},
        "prompt_cache_key": "k", "enable_speculative": True, "user": "u", "metadata": {}, "include_reasoning": True,
        "thinking": {"type": "enabled"}, "max_completion_tokens": 3, "min_p": 0, "presence_penalty": 0,
    },
    TEXT: {"model": "m", "prompt": "x", "stream": True, "echo": False, "logprobs": 1, "suffix": "x", "best_of": 1,
            "max_tokens": 3},
    MESSAGES: {
        "model": "m", "max_tokens": 5, "stream": True, "system": [{"type": "text", "text": "s"}],
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "x", "cache_control": {"type": "ephemeral"}},
                                         {"type": "image", "source": {"type": "base64", "media_type": "image/png",
                                                                      "data": "eA=="}}]},
            {"role": "assistant", "content": [{"type": "thinking", "thinking": "t", "signature": "s"},
                                              {"type": "tool_use", "id": "toolu_1", "name": "f", "input": {}}]},
            {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "toolu_1", "content": [
                {"type": "text", "text": "x"}], "is_error": False}]},
        ],
        "tools": [{"name": "f", "description": "d", "input_schema": {"type": "object"}}],
        "tool_choice": {"type": "auto", "disable_parallel_tool_use": True}, "stop_sequences": ["x"],
        "temperature": 1, "top_k": 1, "top_p": 1, "metadata": {"user_id": "u"}, "thinking": {"type": "enabled",
                                                                                            "budget_tokens": 2000},
        "output_config": {"effort": "low", "format": {"type": "json_schema", "schema": {}}},
        "context_management": {"edits": []}, "container": None, "mcp_servers": [], "service_tier": "auto",
    },
    RESPONSES: {
        "model": "m", "stream": True, "instructions": "i", "max_output_tokens": 5, "store": False,
        "input": [
            {"type": "message", "role": "user", "content": [{"type": "input_text", "text": "x"},
                                                            {"type": "input_image", "image_url": "data:x"}]},
            {"type": "reasoning", "id": "rs_1", "summary": [{"type": "summary_text", "text": "t"}],
             "encrypted_content": "x"},
            {"type": "function_call", "id": "fc_1", "call_id": "c", "name": "f", "arguments": "{}"},
            {"type": "function_call_output", "call_id": "c", "output": "ok"},
            {"type": "custom_tool_call", "call_id": "d", "name": "p", "input": "x"},
            {"type": "custom_tool_call_output", "call_id": "d", "output": [{"type": "input_text", "text": "x"}]},
            {"type": "local_shell_call", "call_id": "e", "action": {"type": "exec", "command": ["ls"]}},
            {"role": "assistant", "content": [{"type": "output_text", "text": "x", "annotations": []}]},
            {"role": "user", "content": "hello"},
        ],
        "tools": [{"type": "function", "name": "f", "description": "d", "strict": True,
                   "parameters": {"type": "object"}}, {"type": "custom", "name": "p", "format": {"type": "text"}},
                  {"type": "local_shell"}, {"type": "web_search"}],
        "tool_choice": {"type": "function", "name": "f"}, "parallel_tool_calls": True, "include": ["x"],
        "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"}, "truncation": "auto",
        "text": {"format": {"type": "json_schema", "name": "n", "schema": {}, "strict": True}, "verbosity": "low"},
        "prompt_cache_key": "k", "previous_response_id": None, "background": False, "top_logprobs": 1,
        "conversation": None, "prompt": None, "max_tool_calls": 3, "temperature": 1, "user": "u",
    },
}  # fmt: skip
_FULL[COUNT] = {name: _FULL[MESSAGES][name] for name in ("model", "messages", "system", "tools", "tool_choice")}

_WRONG = (
    "null", "true", "false", "0", "-1", "1e999", "9" * 400, "-0.5", '""', '"\\u0000"', '"\\ud800"', '"x"', "[]",
    "{}", "[null]", "[[]]", "[{}]", '{"":{}}', '{"type":"x"}', '[{"type":"text"}]', '[{"type":null}]',
    "[" * 300 + "]" * 300, '{"type":"function","function":null}', '[{"role":"tool"}]', '[0,"a",{}]',
    '"' + "x" * 3000 + '"', "1.0", '{"type":["function"]}',
)  # fmt: skip


def _places(value: Any, path: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if path:
        yield path
    members = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for key, member in members:
        yield from _places(member, (*path, key))


def _with(value: Any, path: tuple[Any, ...], text: str) -> str:
    """Returns a value's JSON with one part of it replaced by a text."""
    if not path:
        return text
    if isinstance(value, dict):
        return "{" + ",".join(f"{json.dumps(k)}:{_part(v, k, path, text)}" for k, v in value.items()) + "}"
    return "[" + ",".join(_part(v, k, path, text) for k, v in enumerate(value)) + "]"


def _part(value: Any, key: Any, path: tuple[Any, ...], text: str) -> str:
    return _with(value, path[1:], text) if key == path[0] else json.dumps(value)


def _wrong_types(path: str) -> Attack:
    full = _FULL[path]
    bodies = [(place, wrong, _with(full, place, wrong).encode()) for place in _places(full) for wrong in _WRONG]

    async def run(gateway: Gateway) -> str:
        found: list[str] = []
        waiting = iter(bodies)

        async def work() -> None:
            for place, wrong, body in waiting:
                if said := fault(await gateway.post(body, path)):
                    found.append(f"{'.'.join(map(str, place))} = {wrong[:40]}: {said}")

        await asyncio.gather(*(work() for _ in range(_AT_ONCE)))
        return f"{len(found)} of {len(bodies)}: " + " | ".join(found[:12]) if found else ""

    return Attack(f"bodies: wrong types in {path}, {len(bodies)} bodies", run)


def _posting(name: str, body: bytes, path: str = CHAT, head: str = "") -> Attack:
    async def run(gateway: Gateway) -> str:
        return fault(await gateway.post(body, path, head))

    return Attack(f"body: {name}", run)


def _chat(more: str, messages: str = '[{"role":"user","content":"hello"}]') -> bytes:
    return f'{{"model":"m","messages":{messages}{"," if more else ""}{more}}}'.encode("utf-8", "surrogatepass")


def _turn(arguments: str) -> str:
    function = json.dumps({"name": "f", "arguments": arguments})
    return f'{{"role":"assistant","content":null,"tool_calls":[{{"id":"c","type":"function","function":{function}}}]}}'


def _history(*arguments: str) -> bytes:
    turns = ",".join(f'{_turn(text)},{{"role":"tool","tool_call_id":"c","content":"x"}}' for text in arguments)
    return _chat("", f'[{{"role":"user","content":"x"}},{turns}]')


_MB = 2**20
_BODIES: dict[str, bytes] = {
    **{name: _chat(members) for name, members in MEMBERS.items()},
    **{name: _history(*calls) for name, calls in HISTORIES.items()},
    "M1 4 MB of numbers and our own field": _chat('"enable_speculative":true,"x":[' + ",".join(["1"] * 2 * _MB) + "]"),
    "M1 30 MB of numbers": _chat('"enable_speculative":true,"x":[' + ",".join(["12345678"] * 3_400_000) + "]"),
    "M1 a cut call of 1 MB": _history('{"a": "' + "x\n" * 500_000),
    "M1 25,000 bad calls": _history(*['{"a": [1, '] * 25_000),
    "a cut call of 4 MB of numbers": _history('{"a": [' + "1.25," * 800_000),
    "an earlier call of 4,000-digit numbers": _history('{"a": [' + ",".join(["7" * 4_000] * 1_000) + "]}"),
    "an earlier call of 280,000 numbers, cut": _history('{"a": [' + ",".join(["1.2345678901"] * 280_000)),
    "L4 invalid UTF-8 in a key, with xargs": b'{"model":"m","vllm_xargs":{"\xff":1},"messages":[],"\xff":1}',
    "L4 invalid UTF-8 in a history": _history("{}").replace(b'"content":"x"}]', b'"content":"\xff"}]'),
    "a name twice": _chat('"model":"n","stream":true,"stream":false'),
    "messages twice": _chat('"messages":[]'),
    "our field twice": _chat('"enable_speculative":true,"enable_speculative":false'),
    "NUL": b"\0" + _chat(""), "NUL behind": _chat("") + b"\0", "BOM": b"\xef\xbb\xbf" + _chat(""),
    "BOM twice": b"\xef\xbb\xbf" * 2 + _chat(""), "UTF-16": _chat("").decode().encode("utf-16"),
    "UTF-32": _chat("").decode().encode("utf-32"), "UTF-7": _chat("").decode().encode("utf-7"),
    "lone surrogates": _chat('"user":"\\ud800\\ud800"', '[{"role":"user","content":"\\udfff"}]'),
    "surrogates as CESU-8": _chat('"user":"\ud800"'), "an overlong slash": b'{"model":"m\xc0\xaf","messages":[]}',
    "a model of surrogates": b'{"model":"\\ud800","messages":[]}',
    "a model of 1 MB": json.dumps({"model": "x" * _MB, "messages": []}).encode(),
    "a model of line ends": b'{"model":"m\\r\\nx-a: b","messages":[]}',
    "1e999 everywhere": _chat('"temperature":1e999,"top_p":-1e999,"seed":1e999,"max_tokens":1e999,"min_p":1e999'),
    "400 digits everywhere": _chat(",".join(f'"{name}":{"9" * 400}' for name in (
        "temperature", "n", "seed", "max_tokens", "min_p", "top_logprobs", "prompt_cache_key"))),
    "a seed of 5,000 digits": _chat('"seed":' + "9" * 5_000), "an exponent of 4 MB": _chat('"x":1e' + "0" * 4 * _MB + "1"),
    "a number of 4 MB": _chat('"x":' + "9" * 4 * _MB), "a fraction of 4 MB": _chat('"x":0.' + "9" * 4 * _MB),
    "brackets, 4 MB": _chat('"x":' + "[" * 2 * _MB + "]" * 2 * _MB), "open brackets": b"[" * 4 * _MB,
    "open braces": b'{"a":' * 800_000, "brackets in content": _chat("", '[{"role":"user","content":' + "[" * 900 + "]" * 900
                                                                   + "}]"),
    "brackets in a tool": _chat('"tools":' + "[" * 1_000 + "]" * 1_000),
    "nesting in a template argument": _chat('"chat_template_kwargs":{"a":' + "[" * 1_000 + "]" * 1_000 + "}"),
    "escapes, 4 MB": _chat('"x":"' + "\\u0041" * 700_000 + '"'),
    "escapes in content, 4 MB": _chat("", '[{"role":"user","content":"' + "\\u0041" * 700_000 + '"}]'),
    "spaces, 20 MB": _chat("" + " " * 20 * _MB), "a list": b"[]", "text": b'"x"', "nothing": b"", "space": b"  \n",
    "two documents": _chat("") + _chat(""), "a comment": b"/* x */" + _chat(""), "NaN": _chat('"x":NaN'),
    "a comma behind": _chat("")[:-1] + b",}", "single quotes": b"{'model':'m'}",
    "200,000 more members": _chat(",".join(f'"k{n}":0' for n in range(200_000))),
    "200,000 equal members": _chat(",".join(['"k":0'] * 200_000)),
    "60,000 messages": _chat("", "[" + ",".join(['{"role":"user","content":"x"}'] * 60_000) + "]"),
    "29,000 messages": _chat("", "[" + ",".join(['{"role":"user","content":"x"}'] * 29_000) + "]"),
    "29,000 parts": _chat("", '[{"role":"user","content":[' + ",".join(['{"type":"text","text":"x"}'] * 29_000)
                          + "]}]"),
    "29,000 images": _chat("", '[{"role":"user","content":[' + ",".join(
        ['{"type":"image_url","image_url":{"url":"data:"}}'] * 14_000) + "]}]"),
    "a picture of 20 MB": _chat("", '[{"role":"user","content":[{"type":"image_url","image_url":{"url":"data:image/png;'
                                'base64,' + "A" * 20 * _MB + '"}}]}]'),
    "100,000 tools": _chat('"tools":[' + ",".join(['{"type":"function","function":{"name":"f"}}'] * 100_000) + "]"),
    "100,000 nulls for tools": _chat('"tools":[' + ",".join(["null"] * 100_000) + "]"),
    "1,000,000 stops": _chat('"stop":[' + ",".join(['"a"'] * 1_000_000) + "]"),
    "1,000,000 biases": _chat('"logit_bias":{' + ",".join(f'"{n}":1' for n in range(100_000)) + "}"),
    "1,000,000 prompts": b'{"model":"m","prompt":[' + b",".join([b'"a"'] * 1_000_000) + b"]}",
    "a tool's name of 4 MB": _chat('"tools":[{"type":"function","function":{"name":"' + "f" * 4 * _MB + '"}}]'),
    "a choice of a name of 4 MB": _chat('"tools":[{"type":"function","function":{"name":"f"}}],"tool_choice":{"type":'
                                        '"function","function":{"name":"' + "f" * 4 * _MB + '"}}'),
    "n of 2^31": _chat('"n":2147483648'), "max_tokens of -1": _chat('"max_tokens":-1'),
    "null messages": b'{"model":"m","messages":null}', "no messages": b'{"model":"m"}',
}  # fmt: skip

_DENSE_MESSAGES = json.dumps(
    {"model": "m", "max_tokens": 5, "messages": [{"role": "user", "content": [{"type": "text", "text": "x"}] * 25_000}]}
).encode()
_DENSE_ITEMS = json.dumps({"model": "m", "input": [{"role": "user", "content": "x"}] * 25_000}).encode()
_OTHER = (
    _posting("25,000 blocks", _DENSE_MESSAGES, MESSAGES),
    _posting("25,000 blocks, counted", _DENSE_MESSAGES, COUNT),
    _posting("25,000 items", _DENSE_ITEMS, RESPONSES),
    _posting("4 MB of tool input", json.dumps({"model": "m", "max_tokens": 5, "messages": [
        {"role": "user", "content": "x"}, {"role": "assistant", "content": [
            {"type": "tool_use", "id": "t", "name": "f", "input": {"a": [1.5] * 250_000}}]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "t", "content": "x"}]}]}).encode(),
        MESSAGES),
    _posting("4 MB of sealed reasoning", json.dumps({"model": "m", "input": [
        {"type": "reasoning", "id": "r", "summary": [], "encrypted_content": "A" * 4 * _MB},
        {"role": "user", "content": "x"}]}).encode(), RESPONSES),
    _posting("a grammar of 4 MB", json.dumps({"model": "m", "input": "x", "tools": [
        {"type": "custom", "name": "p", "format": {"type": "grammar", "syntax": "lark", "definition": "a" * 4 * _MB}}],
        }).encode(), RESPONSES),
    _posting("deep input_schema", b'{"model":"m","max_tokens":5,"messages":[{"role":"user","content":"x"}],"tools":[{'
             b'"name":"f","input_schema":' + b'{"a":' * 5_000 + b"1" + b"}" * 5_000 + b"}]}", MESSAGES),
    _posting("messages of brackets", b'{"model":"m","max_tokens":5,"messages":' + b"[" * _MB + b"]" * _MB + b"}",
             MESSAGES),
    _posting("input of brackets", b'{"model":"m","input":' + b"[" * _MB + b"]" * _MB + b"}", RESPONSES),
    _posting("numbers of 4,000 digits in input", b'{"model":"m","input":"x","metadata":{"a":[' + b",".join(
        [b"7" * 4_000] * 1_000) + b"]}}", RESPONSES),
    _posting("L12 explain", _chat('"tools":[{"type":"function","function":{"name":"f","parameters":{}}}]'), _EXPLAIN),
)  # fmt: skip


ATTACKS = (
    *(_posting(name, body) for name, body in _BODIES.items()),
    *_OTHER,
    *map(_wrong_types, _FULL),
)
