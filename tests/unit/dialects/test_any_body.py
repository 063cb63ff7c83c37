"""Whatever stands in the place of any part of a body: it is translated, or the client is told what is wrong."""

import copy
import json
from collections.abc import Iterator
from contextlib import suppress
from typing import Any

import msgspec
import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.dialects.dialect import Dialect
from serve.dialects.messages import MESSAGES
from serve.dialects.messages.request import decode_count
from serve.dialects.responses import RESPONSES
from serve.errors import InvalidRequestError

SCHEMA = {"type": "object", "properties": {"a": {"type": "integer"}}}
TEXT = {"type": "text", "text": "t"}
ODD = [None, True, False, -1, 1.5, 10**30, "", "x", "\x00", [], {}, [None], {"type": "x"}, {"": None}, [[[]]]]
ANYTHING = st.sampled_from(ODD) | st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(max_size=5),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.dictionaries(
            st.sampled_from(["type", "text", "content", "source", "tools", "name", "id"]), inner, max_size=3
        )
    ),
    max_leaves=6,
)

MESSAGES_BODY: dict[str, Any] = {
    "model": "m", "max_tokens": 9, "stream": False, "system": [{"type": "text", "text": "s"}],
    "messages": [
        {"role": "user", "content": [
            {"type": "text", "text": "hello"},
            {"type": "document", "title": "t", "source": {"type": "content", "content": [TEXT]}},
            {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "iVBORw0="}},
            {"type": "search_result", "title": "t", "source": "s", "content": [{"type": "text", "text": "f"}]},
        ]},
        {"role": "assistant", "content": [
            {"type": "thinking", "thinking": "t", "signature": "s"},
            {"type": "tool_use", "id": "c1", "name": "f", "input": {"a": 1}},
        ]},
        {"role": "user", "content": [{"type": "tool_result", "tool_use_id": "c1", "content": [TEXT]}]},
    ],
    "tools": [{"name": "f", "description": "d", "input_schema": SCHEMA}], "tool_choice": {"type": "tool", "name": "f"},
    "thinking": {"type": "enabled", "budget_tokens": 5}, "output_config": {"effort": "low"}, "stop_sequences": ["x"],
    "metadata": {"user_id": "u"}, "thread": {"type": "create"}, "temperature": 0.5,
}  # fmt: skip
RESPONSES_BODY: dict[str, Any] = {
    "model": "m", "instructions": "i", "max_output_tokens": 9, "stream": False,
    "input": [
        {"type": "message", "role": "user", "content": [
            {"type": "input_text", "text": "hello"},
            {"type": "input_image", "image_url": "data:image/png;base64,iVBORw0="},
            {"type": "input_file", "filename": "n.txt", "file_data": "data:text/plain;base64,aGk="},
        ]},
        {"type": "reasoning", "id": "rs", "summary": [{"type": "summary_text", "text": "t"}], "encrypted_content": "x"},
        {"type": "function_call", "call_id": "c1", "name": "f", "arguments": "{}", "namespace": "n"},
        {"type": "function_call_output", "call_id": "c1", "output": [{"type": "input_text", "text": "r"}]},
        {"type": "custom_tool_call", "call_id": "c2", "name": "g", "input": "x"},
        {"type": "custom_tool_call_output", "call_id": "c2", "output": "r"},
    ],
    "tools": [
        {"type": "function", "name": "f", "parameters": SCHEMA, "strict": True},
        {"type": "namespace", "name": "n", "tools": [{"type": "function", "name": "f", "parameters": SCHEMA}]},
        {"type": "custom", "name": "g", "format": {"type": "grammar", "syntax": "lark", "definition": "x"}},
    ],
    "tool_choice": {"type": "allowed_tools", "mode": "auto", "tools": [{"type": "function", "name": "f"}]},
    "reasoning": {"effort": "low", "summary": "auto"}, "metadata": {"a": "b"},
    "include": ["reasoning.encrypted_content"],
    "text": {"format": {"type": "json_schema", "name": "s", "schema": SCHEMA, "strict": True}, "verbosity": "low"},
}  # fmt: skip
BODIES = [(MESSAGES, MESSAGES_BODY), (RESPONSES, RESPONSES_BODY)]


def places(value: Any, at: tuple[Any, ...] = ()) -> Iterator[tuple[Any, ...]]:
    if at:
        yield at
    inner = value.items() if isinstance(value, dict) else enumerate(value) if isinstance(value, list) else ()
    for name, each in inner:
        yield from places(each, (*at, name))


def changed(body: Any, place: tuple[Any, ...], value: Any) -> Any:
    body = copy.deepcopy(body)
    parent = body
    for name in place[:-1]:
        parent = parent[name]
    parent[place[-1]] = value
    return body


def is_answered(dialect: Dialect, body: bytes) -> None:
    for decode in (dialect.decode, *([decode_count] if dialect is MESSAGES else [])):
        with suppress(InvalidRequestError):
            msgspec.json.decode(decode(body).body)


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=["messages", "responses"])
@settings(max_examples=300, deadline=None)
@given(data=st.data())
def test_any_value_in_any_place_is_translated_or_refused(dialect: Dialect, body: dict[str, Any], data: Any) -> None:
    place = data.draw(st.sampled_from(list(places(body))))
    is_answered(dialect, json.dumps(changed(body, place, data.draw(ANYTHING))).encode())


@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=["messages", "responses"])
def test_every_odd_value_in_every_place_is_translated_or_refused(dialect: Dialect, body: dict[str, Any]) -> None:
    for place in places(body):
        for value in ODD:
            is_answered(dialect, json.dumps(changed(body, place, value)).encode())


@pytest.mark.parametrize("depth", [100, 300, 400, 950, 5_000])
@pytest.mark.parametrize(("dialect", "body"), BODIES, ids=["messages", "responses"])
@pytest.mark.parametrize(
    "nest", ['{"type":"document","source":{"type":"content","content":[%]}}', "[%]", '{"items":%}']
)
def test_any_depth_in_any_place_is_translated_or_refused(
    dialect: Dialect, body: dict[str, Any], nest: str, depth: int
) -> None:
    before, _, after = nest.partition("%")
    deep = before * depth + "null" + after * depth
    for place in places(body):
        text = json.dumps(changed(body, place, "HERE"))
        is_answered(dialect, text.replace('"HERE"', deep).encode())
