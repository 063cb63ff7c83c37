"""Whatever the bytes of a body, the gateway answers with a value or with an error that the client can see."""

import asyncio
import json
from collections.abc import Callable
from typing import Any

import pytest
from hypothesis import example, given, settings
from hypothesis import strategies as st

from serve.config.gateway import GatewayConfig
from serve.errors import GatewayError
from serve.guard.core.expectation import Expectation, LazyRequest
from serve.guard.history import repair_history
from serve.request.body_reader import RequestReader
from serve.request.features import FeatureReader
from serve.request.field_rules import check_schemas

MODEL = {"family": "kimi-k2", "grammar": "kimi_k2", "pools": {"s": {"kind": "vllm"}}}
CONFIG = GatewayConfig.parse({"models": {"m": MODEL}})
STRICT = GatewayConfig.parse({"models": {"m": MODEL}, "requests": {"mode": "strict"}})
CALL = {"id": "call_1", "type": "function", "function": {"name": "f", "arguments": '{"a": [1, "x\\n"], "b": {"c'}}
SOUND = [
    {
        "model": "m",
        "messages": [
            {"role": "user", "content": [{"type": "text", "text": "é 😀"}, {"image_url": {"url": "data:x"}}]},
            {"role": "assistant", "content": None, "tool_calls": [CALL, CALL]},
            {"role": "tool", "tool_call_id": "call_1", "content": "done"},
        ],
        "tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}, "strict": True}}],
        "tool_choice": {"type": "function", "function": {"name": "f"}},
        "response_format": {"type": "json_schema", "json_schema": {"strict": True, "schema": {"a": [1, 2]}}},
        "chat_template_kwargs": {"enable_thinking": False, "x": 1.5},
        "thinking": {"type": "disabled"},
        "reasoning_effort": "none",
        "vllm_xargs": {"a": 1},
        "logit_bias": {"5": -100},
        "stop": ["x"],
        "enable_speculative": True,
        "stream": None,
        "stream_options": {"include_usage": True},
    },
    {"model": "m", "prompt": ["a", "b"], "n": 2, "logprobs": 3, "prompt_cache_key": 5, "structured_outputs": {"a": 1}},
]
# Put in place of some bytes. Each has broken a decoder, ours or another's.
ODD = [
    b"", b"\xff", b"\xc3", b"\xed\xa0\xbd", b"\x00", b"\n", b'"', b"\\", b"{", b"}", b"[", b"]", b",", b":", b"null",
    b"true", b"-1", b"1e999", b"NaN", b"1" * 5_000, b"-" + b"9" * 5_000, b"1." + b"0" * 5_000, b"[" * 2_000,
    b'{"a":' * 2_000, b"[" * 500 + b"]" * 500, rb"\ud83d", rb"\ude00", rb"\u0000", b"\xef\xbb\xbf", b'""', b"{}", b"[]",
    b'"tool_calls"', b'"tool_call_id"', b'"model":"m",',
]  # fmt: skip


def respond(config: GatewayConfig, body: bytes) -> None:
    """Does with a body what the gateway does before it sends one."""
    reader = FeatureReader(config)
    sent, request, patch = RequestReader(config.requests).read(body)
    check_schemas(request, config.limits)
    reader.read(request, {})
    reader.set_switch(patch, request)
    asyncio.run(repair_history(patch, sent, "fix", "kimi_k2"))
    Expectation(LazyRequest(request))
    patch.apply(sent)


@st.composite
def bodies(draw: Callable[..., Any]) -> bytes:
    body = json.dumps(draw(st.sampled_from(SOUND)), ensure_ascii=draw(st.booleans())).encode()
    for _ in range(draw(st.integers(0, 3))):
        place = draw(st.integers(0, len(body)))
        end = place + draw(st.integers(0, 12))
        body = body[:place] + draw(st.sampled_from(ODD) | st.binary(max_size=4)) + body[end:]
    return body


def in_every_place(odd: bytes) -> list[bytes]:
    """Returns bodies with the odd bytes in place of each value, each name and each string's content."""
    made = []
    for sound in SOUND:
        body = json.dumps(sound).encode()
        places = [place for place, char in enumerate(body) if char in b':,[{"']
        made += [body[: place + 1] + odd + body[place + 1 :] for place in places]
        ends = [min((body.find(mark, place) for mark in (b",", b"}", b"]")), default=0) for place in places]
        made += [body[: place + 1] + odd + body[end:] for place, end in zip(places, ends, strict=True) if end > place]
    return made


def judge(config: GatewayConfig, body: bytes) -> None:
    error = refused(config, body)
    if error is not None:
        assert error.status in (400, 404, 413, 422)
        assert json.loads(error.to_json())["error"]["message"]


def refused(config: GatewayConfig, body: bytes) -> GatewayError | None:
    try:
        respond(config, body)
    except GatewayError as error:
        return error
    return None


@settings(max_examples=300)
@given(bodies(), st.sampled_from([CONFIG, STRICT]))
@example(json.dumps(SOUND[0]).encode(), CONFIG)
def test_a_mutated_body_ends_in_a_value_or_an_error_of_the_clients(body: bytes, config: GatewayConfig) -> None:
    judge(config, body)


@pytest.mark.parametrize("odd", ODD, ids=range(len(ODD)))
def test_odd_bytes_in_any_place_end_in_a_value_or_an_error_of_the_clients(odd: bytes) -> None:
    for body in in_every_place(odd):
        judge(CONFIG, body)


@pytest.mark.parametrize("sound", SOUND, ids=["chat", "text"])
def test_the_bodies_to_be_mutated_are_sound(sound: Any) -> None:
    respond(CONFIG, json.dumps(sound).encode())
