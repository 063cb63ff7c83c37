"""What the gateway reads of a body, and what the guard gets to see of it."""

import json
from typing import Any

import pytest
from msgspec import UNSET

from serve.errors import InvalidRequestError
from serve.guard.core.expectation import Expectation, LazyRequest
from serve.request.completion import holds, is_several, parse

SCHEMA = {"type": "object", "properties": {"city": {"type": "string"}}}
BODY: dict[str, Any] = {
    "model": "m",
    "messages": [{"role": "user", "content": "say <tool_call>"}],
    "tools": [
        {"type": "function", "function": {"name": "f", "description": "d", "parameters": SCHEMA, "strict": True}},
        {"type": "function", "function": {"name": "g"}},
        {"type": "web_search"},
    ],
    "response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": SCHEMA, "strict": True}},
    "stream_options": {"include_usage": True},
}
NAMED = {"type": "function", "function": {"name": "f"}}
ALLOWED = {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NAMED]}}


def body(**more: Any) -> bytes:
    return json.dumps({**BODY, **more}).encode()


def said(expectation: Expectation) -> dict[str, Any]:
    document = expectation.document
    return {
        "tools": {name: (schema.strict, schema.mismatch({"city": 1})) for name, schema in expectation.tools.items()},
        "forced": expectation.forced,
        "required": expectation.calls_required,
        "document": document and (document.strict, document.mismatch({"city": 1})),
        "usage": expectation.wants_usage,
        "silence": expectation.silence_is_odd,
        "answers": expectation.answers,
    }


@pytest.mark.parametrize(
    "more",
    [
        {},
        {"tool_choice": "required"},
        {"tool_choice": NAMED},
        {"tool_choice": ALLOWED},
        {"tools": None, "response_format": None, "stream_options": None},
        {"response_format": {"type": "json_object"}},
        {"messages": [{"role": "tool", "content": "x"}]},
        {"n": 2},
    ],
)
def test_the_guard_expects_the_same_as_of_the_whole_request(more: dict[str, Any]) -> None:
    sent = body(**more)
    said(Expectation(json.loads(sent)))  # compiles the schemas, which may take more than a request has
    assert said(Expectation(LazyRequest(parse(sent)))) == said(Expectation(json.loads(sent)))


@pytest.mark.parametrize(
    ("structured", "form"),
    [
        ({"json": SCHEMA}, BODY["response_format"]),
        ({"json": json.dumps(SCHEMA)}, BODY["response_format"]),
        ({"json": SCHEMA, "json_object": None}, BODY["response_format"]),
        ({"json_object": True}, {"type": "json_object"}),
        ({"json": "{no schema"}, None),
        ({"json": '"no schema"'}, None),
        ({"json": 1}, None),
        ({"regex": "a+"}, None),
        ({}, None),
        (["json"], None),
    ],
)
@pytest.mark.parametrize("beside", [None, {"type": "text"}])
def test_the_guard_expects_of_structured_outputs_what_it_expects_of_a_response_format(
    structured: Any, form: Any, beside: Any
) -> None:
    either = body(structured_outputs=structured, response_format=beside), body(response_format=form)
    sent, same = (said(Expectation(LazyRequest(parse(each)))) for each in either)
    assert sent == same


def test_a_response_format_goes_before_structured_outputs() -> None:
    both = body(structured_outputs={"json_object": True})
    assert said(Expectation(LazyRequest(parse(both)))) == said(Expectation(LazyRequest(parse(body()))))


def test_what_a_response_must_satisfy_is_read_and_nothing_else_is_built() -> None:
    sent = body(seed=1, stop=["x"], stop_token_ids=[7])
    expected = LazyRequest(parse(sent))
    assert (expected["stop"], expected["stop_token_ids"]) == (["x"], [7])
    assert len(expected) == len(set(expected)) == 11
    with pytest.raises(KeyError):
        expected["seed"]


def test_numbers_beyond_a_float_are_no_reason_to_refuse_a_schema() -> None:
    sent = body().replace(b'"stream_options":', b'"x": 1e999, "stream_options":', 1)
    sent = sent.replace(b'"parameters": {', b'"parameters": {"maximum": 1e999, ', 1)
    assert b"1e999" in sent
    expected = LazyRequest(parse(sent))
    assert [*Expectation(expected).tools]


@pytest.mark.parametrize("odd", [b"1" * 5_000, b'"\xff"'])
def test_a_schema_that_python_does_not_read_is_400(odd: bytes) -> None:
    tool = b'{"type":"function","function":{"name":"f","parameters":{"default":%b}}}'
    sent = b'{"model":"m","messages":[],"tools":[%b]}' % (tool % odd)
    with pytest.raises(InvalidRequestError) as caught:
        LazyRequest(parse(sent))
    assert caught.value.code == "invalid_json"


def test_fields_of_ours_and_of_the_engine_are_noticed() -> None:
    assert parse(body()).enable_speculative is UNSET
    assert parse(body(enable_speculative=False)).enable_speculative is False
    assert parse(body(vllm_xargs={"enable_speculative": 1})).enable_speculative is UNSET
    assert parse(body()).vllm_xargs is UNSET
    with pytest.raises(InvalidRequestError, match="vllm_xargs"):
        parse(body(vllm_xargs=[1]))


@pytest.mark.parametrize("place", [0, 1, 1_048_572, 1_048_576, 2_097_150, 3_000_000])
def test_a_mark_is_found_wherever_it_stands_in_a_long_text(place: int) -> None:
    text = bytearray(b"a" * 3_000_004)
    assert not holds(bytes(text), b"null")
    text[place : place + 4] = b"null"
    assert holds(bytes(text), b"null")


@pytest.mark.parametrize(
    ("prompt", "several"),
    [
        ('"p"', False), ('"[[1]]"', False), ("[1, 2]", False), ("[\n 1]", False), ('["p"]', True), ('["1", "2"]', True),
        ("[[1], [2]]", True), ("[ [1]]", True), ("null", False),
    ],
)  # fmt: skip
def test_ids_are_one_prompt_and_a_list_of_texts_or_of_lists_may_be_several(prompt: str, several: bool) -> None:
    assert is_several(parse(b'{"model": "m", "prompt": %b}' % prompt.encode()).prompt) is several
