"""Checks a model's text against a client's JSON schema. Neither is trusted, so no schema may harm the gateway."""

from __future__ import annotations

import json
import re
from collections.abc import Iterator, Mapping
from functools import lru_cache
from typing import Any

import jsonschema
import referencing
import regex
from jsonschema.exceptions import SchemaError, ValidationError
from jsonschema.protocols import Validator

_MATCH_TIMEOUT_S = 0.05
_canonical = json.JSONEncoder(sort_keys=True)
_CANNOT_APPLY = (referencing.exceptions.Unresolvable, re.error, regex.error, TimeoutError, RecursionError)


class Schema:
    """A JSON schema of the request, compiled on first use.

    A schema that can't be applied is the client's fault and accepts everything: one that is invalid, refers to
    something outside itself or endlessly to itself, or has a pattern that takes for ever. References are never
    fetched.

    Args:
        schema: As the request has it; None accepts everything.
        strict: Whether the request asks to enforce it.
    """

    def __init__(self, schema: Any, *, strict: bool) -> None:
        self.strict = strict
        self._schema = schema

    @property
    def is_of_objects(self) -> bool:
        return isinstance(self._schema, Mapping) and bool(self._schema.get("type") == "object")

    def mismatch(self, value: Any) -> str | None:
        """Returns where and by which keyword `value` fails; None if it does not."""
        if self._schema is None:
            return None
        try:
            validator = _compiled(_canonical.encode(self._schema))
            error = next(validator.iter_errors(value), None) if validator is not None else None
        except _CANNOT_APPLY:
            return None
        return None if error is None else f"{error.json_path}: {error.validator}"


def _matches(pattern: str, text: str) -> bool:
    return regex.search(pattern, text, timeout=_MATCH_TIMEOUT_S) is not None


def _pattern(validator: Validator, pattern: str, instance: Any, _: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("the pattern is not found")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    for pattern, schema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _nothing(*_: Any) -> tuple[()]:
    return ()


# Python's own `re` can't be interrupted, and a client's pattern must not stop the gateway for minutes.
_STOPPABLE = {"pattern": _pattern, "patternProperties": _pattern_properties}
# These two match property names against all sibling patterns with `re`.
_UNCHECKED = {"additionalProperties": _nothing, "unevaluatedProperties": _nothing}


@lru_cache(maxsize=2048)
def _compiled(schema_text: str) -> Validator | None:
    schema = json.loads(schema_text)
    keywords = _STOPPABLE | (_UNCHECKED if '"patternProperties"' in schema_text else {})
    for draft in (jsonschema.Draft202012Validator, jsonschema.Draft7Validator):
        try:
            draft.check_schema(schema)
        except SchemaError:
            continue
        validator = jsonschema.validators.extend(draft, keywords)  # type: ignore[no-untyped-call]
        compiled: Validator = validator(schema, registry=referencing.Registry())
        return compiled
    return None
