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
    "schemas",
    [
        [{"description": "x" * 1_100_000}],
        [{"enum": list(range(20_001))}],
        [{"enum": list(range(12_000))}] * 2,
        [nested(65)],
        [{}] * 513,
    ],
)
def test_schemas_over_a_limit_are_refused(schemas: list[Any]) -> None:
    tools = [{"type": "function", "function": {"name": "f", "parameters": schema}} for schema in schemas]
    body = {"model": "m", "messages": [], "tools": tools}
    with pytest.raises(InvalidRequestError) as caught:
        check_schemas(parse(json.dumps(body).encode()), LimitsConfig())
    assert caught.value.param == "tools"


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
