"""Schemas of a request are bounded in bytes, depth, values and number."""

import json
from typing import Any

import pytest

from serve.config.gateway import LimitsConfig
from serve.errors import InvalidRequestError
from serve.request.completion import parse
from serve.request.schema_limits import check_schemas


def nested(depth: int) -> Any:
    schema: Any = {}
    for _ in range(depth):
        schema = {"not": schema}
    return schema


@pytest.mark.parametrize(
    ("schemas", "setting", "limit"),
    [
        ([{"description": "x" * 1_100_000}], "max_schema_bytes", 1_048_576),
        ([{"enum": [1] * 50_001}], "max_schema_nodes", 50_000),
        ([{"enum": [1] * 30_000}] * 2, "max_schema_nodes", 50_000),
        ([{"allOf": [{}] * 50_001}], "max_schema_nodes", 50_000),
        ([nested(65)], "max_schema_depth", 64),
        ([{}] * 513, "max_tools", 512),
    ],
)
def test_schemas_over_a_limit_are_refused_and_told_which_setting_it_is(
    schemas: list[Any], setting: str, limit: int
) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    body = {"model": "m", "messages": [], "tools": tools}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "tools"
    assert f"limits.{setting} is {limit}" in str(caught.value)


@pytest.mark.parametrize("in_text", [False, True])
def test_a_schema_in_vllms_own_field_is_bounded_too(in_text: bool) -> None:
    schema = nested(65)
    structured = {"json": json.dumps(schema) if in_text else schema}
    body = {"model": "m", "messages": [], "structured_outputs": structured}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "structured_outputs"
    assert "limits.max_schema_depth is 64" in str(caught.value)


@pytest.mark.parametrize("json_field", [nested(65), json.dumps(nested(65)), "[" * 100, [[[["{"] * 9]]] * 10_000])
@pytest.mark.parametrize(
    "form", [None, {"type": "json_object"}, {"type": "json_schema", "json_schema": {"schema": {}}}]
)
def test_what_stands_for_a_schema_is_bounded_whether_it_is_used_or_not(form: Any, json_field: Any) -> None:
    """An engine reads it, too, before it says what is wrong."""
    body = {"model": "m", "messages": [], "response_format": form, "structured_outputs": {"json": json_field}}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "structured_outputs"


@pytest.mark.parametrize("odd", [{"regex": "{" * 100}, {"json": 1}, "x", ["{"] * 100])
def test_what_is_no_schema_in_vllms_own_field_is_left_to_the_engine(odd: Any) -> None:
    body = {"model": "m", "messages": [], "structured_outputs": odd}
    check_schemas(parse(json.dumps(body).encode()), LimitsConfig())


def test_a_hundred_and_fifty_tools_with_nine_nullable_properties_are_an_ordinary_request() -> None:
    optional = {"anyOf": [{"type": "string"}, {"type": "null"}], "default": None, "title": "Of a tool server"}
    schema = {"type": "object", "properties": {f"p{n}": optional for n in range(9)}, "required": ["p0"]}
    tools = [{"type": "function", "function": {"name": f"f{n}", "parameters": schema}} for n in range(150)]
    check_schemas(parse(json.dumps({"model": "m", "messages": [], "tools": tools}).encode()), LimitsConfig())


def test_schemas_within_the_limits_are_accepted() -> None:
    schemas = [nested(60), {"enum": ["{[,:"] * 5000}, *[{"properties": {"a": {}}}] * 100]
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    body = {"model": "m", "messages": [], "tools": tools}
    check_schemas(parse(json.dumps(body).encode()), LimitsConfig())


def test_as_many_allowed_tools_as_tools_are_accepted() -> None:
    allowed = [{"type": "function", "function": {"name": "f"}}]
    tools = [{"type": "function", "function": {"name": "f"}}]

    def body(times: int) -> bytes:
        choice = {"type": "allowed_tools", "allowed_tools": {"mode": "auto", "tools": allowed * times}}
        return json.dumps({"model": "m", "messages": [], "tools": tools, "tool_choice": choice}).encode()

    check_schemas(parse(body(512)), LimitsConfig())
    with pytest.raises(InvalidRequestError, match="allowed tools"):
        check_schemas(parse(body(513)), LimitsConfig())
