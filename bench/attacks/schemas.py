"""Schemas that are hard to apply, and answers that are hard to judge."""

from __future__ import annotations

import json
from collections.abc import Mapping
from typing import Any

from bench.attacks.answers import calls, fault, text
from bench.attacks.attack import Attack
from bench.attacks.lab import Gateway
from lab.attacks.bombs import ARGUMENTS, BOMBS, KEYWORDS
from lab.attacks.odd_schemas import SCHEMAS, VALUES
from lab.scripted.arrival import Script

_HELLO = '[{"role":"user","content":"hello"}]'


def tool_body(schema: str, *, streamed: bool = False, more: str = "") -> bytes:
    """Returns a request that offers one tool."""
    tools = f'[{{"type":"function","function":{{"name":"f","parameters":{schema}}}}}]'
    return f'{{"model":"m","stream":{str(streamed).lower()},"messages":{_HELLO},"tools":{tools}{more}}}'.encode()


def format_body(schema: str, *, streamed: bool = False) -> bytes:
    """Returns a request for a JSON document."""
    form = f'{{"type":"json_schema","json_schema":{{"name":"n","strict":true,"schema":{schema}}}}}'
    return f'{{"model":"m","stream":{str(streamed).lower()},"messages":{_HELLO},"response_format":{form}}}'.encode()


def _judged(name: str, schema: Any, value: Any) -> list[Attack]:
    schema = schema if isinstance(schema, str) else json.dumps(schema)
    said = value if isinstance(value, str) else json.dumps(value)

    def attack(how: str, body: bytes, script: Script) -> Attack:
        async def run(gateway: Gateway) -> str:
            return fault(await gateway.post(body))

        return Attack(f"schema: {name}, {how}", run, script)

    return [
        attack("call", tool_body(schema), calls(said)),
        attack("streamed call", tool_body(schema, streamed=True), calls(said)),
        attack("document", format_body(schema, streamed=True), text(said)),
    ]


_TABLES: tuple[Mapping[str, tuple[Any, Any]], ...] = (
    BOMBS,
    KEYWORDS,
    SCHEMAS,
    {name: ({}, said) for name, said in ARGUMENTS.items()},
    VALUES,
)
ATTACKS = tuple(each for table in _TABLES for name, row in table.items() for each in _judged(name, *row))
