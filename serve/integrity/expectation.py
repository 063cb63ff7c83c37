"""What a request demands of its answer: which tools, which schemas, whether a call or a document must come."""

from __future__ import annotations

import json
from collections.abc import Mapping
from functools import cached_property, lru_cache
from typing import Any

import jsonschema
import referencing
from jsonschema.exceptions import SchemaError
from jsonschema.protocols import Validator


class Schema:
    """A JSON schema of the request's, compiled on first use.

    A schema that is itself invalid, or that refers to something outside itself, is the client's fault and accepts
    everything. References are never fetched.
    """

    def __init__(self, schema: Any, *, strict: bool) -> None:
        self.strict = strict
        self._schema = schema

    @property
    def is_of_objects(self) -> bool:
        return isinstance(self._schema, Mapping) and bool(self._schema.get("type") == "object")

    def mismatch(self, value: Any) -> str | None:
        """Where and by which keyword `value` fails; None if it does not."""
        validator = _compiled(json.dumps(self._schema, sort_keys=True)) if self._schema is not None else None
        if validator is None:
            return None
        try:
            error = next(validator.iter_errors(value), None)
        except referencing.exceptions.Unresolvable:
            return None
        return None if error is None else f"{error.json_path}: {error.validator}"


@lru_cache(maxsize=2048)
def _compiled(schema_text: str) -> Validator | None:
    schema = json.loads(schema_text)
    for draft in (jsonschema.Draft202012Validator, jsonschema.Draft7Validator):
        try:
            draft.check_schema(schema)
        except SchemaError:
            continue
        return draft(schema, registry=referencing.Registry())
    return None


class Expectation:
    """What the answer to one request must be.

    Args:
        request: The body of a chat request.
    """

    def __init__(self, request: Mapping[str, Any]) -> None:
        self._request = request
        choice = request.get("tool_choice")
        self.tools: dict[str, Schema] = {
            tool["function"]["name"]: Schema(
                tool["function"].get("parameters"), strict=tool["function"].get("strict") is True
            )
            for tool in request.get("tools") or ()
            if isinstance(tool.get("function"), Mapping) and "name" in tool["function"]
        }
        self.raw_tools: list[Any] = list(request.get("tools") or ())
        self.forced: str | None = choice["function"]["name"] if isinstance(choice, Mapping) else None
        self.calls_required = choice == "required" or self.forced is not None
        self.document = _document(request.get("response_format") or {})
        self.wants_usage = bool((request.get("stream_options") or {}).get("include_usage"))

    @property
    def silence_is_odd(self) -> bool:
        """Whether an answer with neither text nor call would be a loss; after a tool's result it may be meant."""
        messages = self._request.get("messages") or [{}]
        return bool(messages[-1].get("role") != "tool")

    def quotes(self, markup: str) -> bool:
        """Whether the request itself holds the text, so that an answer may well repeat it."""
        return markup in self._text

    @cached_property
    def _text(self) -> str:
        parts = [self._request.get(key) for key in ("messages", "tools", "response_format")]
        return json.dumps(parts, ensure_ascii=False)


def _document(form: Mapping[str, Any]) -> Schema | None:
    """What a JSON answer must satisfy; None if prose will do."""
    if form.get("type") == "json_object":
        return Schema({"type": "object"}, strict=True)
    if form.get("type") == "json_schema":
        described = form.get("json_schema") or {}
        return Schema(described.get("schema"), strict=described.get("strict") is True)
    return None
