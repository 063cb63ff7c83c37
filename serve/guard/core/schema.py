"""Checks a model's text against a client's JSON schema. Neither is trusted, so no schema may harm the gateway."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema
import msgspec
import referencing
import regex
from jsonschema._utils import find_evaluated_item_indexes_by_schema, find_evaluated_property_keys_by_schema
from jsonschema.exceptions import ValidationError

from serve.guard.core.schema_budget import Budget, TooMuchWorkError, UnjudgedError, current
from serve.guard.core.schema_shape import check_shape

_MATCH_TIMEOUT_S = 0.01
_LONGEST_PATTERN = 512  # characters; the compiler of patterns can't be interrupted
_CACHE_BYTES = 64 * 1024 * 1024  # of memory, by estimate

Keyword = Callable[[Any, Any, Any, Any], Any]


class Schema:
    """A JSON schema of the request, compiled on first use. References are never fetched.

    Args:
        schema: As the request has it; None accepts everything.
        strict: Whether the request asks to enforce it.
        budget: Shared by all schemas of a request; one of its own if not given.
    """

    def __init__(self, schema: Any, *, strict: bool, budget: Budget | None = None) -> None:
        self.strict = strict
        self._schema = schema
        self._budget = budget or Budget()
        self._budget.schemas += schema is not None
        self._too_much = False

    @property
    def is_of_objects(self) -> bool:
        return isinstance(self._schema, Mapping) and bool(self._schema.get("type") == "object")

    def mismatch(self, value: Any) -> str | None:
        """Returns where and by which keyword `value` fails; None if it does not.

        Raises:
            UnjudgedError: The schema can't be applied, or not within the budget.
        """
        if self._schema is None:
            return None
        if self._too_much:  # it had its share
            raise TooMuchWorkError("too much work")
        token = current.set(self._budget)
        self._budget.begin()
        try:
            error = next(_compiled.get(self._schema).iter_errors(value), None)
            return None if error is None else f"{error.json_path}: {error.validator}"
        except TooMuchWorkError:
            self._too_much = True
            raise
        except (UnjudgedError, KeyboardInterrupt, SystemExit, GeneratorExit):
            raise
        except BaseException as error:  # endless references, odd numbers, patterns and ids, a panic of an extension
            raise UnjudgedError(type(error).__name__) from error
        finally:
            self._budget.end()
            current.reset(token)


class _Compiled:
    """Compiled schemas, the least recently used ones dropped once all are over the limit.

    Attributes:
        size_bytes: Estimate of what they take.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._validators: OrderedDict[bytes, Any] = OrderedDict()

    def get(self, schema: Any) -> Any:
        """Returns the validator of a schema.

        Raises:
            UnjudgedError: It is not valid.
        """
        text = msgspec.json.encode(schema)
        validator = self._validators.get(text)
        if validator is not None:
            self._validators.move_to_end(text)
            return validator
        if not check_shape(schema, current.get().step):
            raise UnjudgedError("not a valid schema")
        draft = jsonschema.Draft7Validator if b'"items":[' in text else jsonschema.Draft202012Validator
        validator = _validator_class(draft, b'"patternProperties"' in text)(schema, registry=referencing.Registry())
        size = estimated_bytes(text)
        if size > _CACHE_BYTES // 8:
            return validator  # a giant must not drive out everybody else's
        self._validators[text] = validator
        self.size_bytes += size
        while self.size_bytes > _CACHE_BYTES:
            dropped, _ = self._validators.popitem(last=False)
            self.size_bytes -= estimated_bytes(dropped)
        return validator


def estimated_bytes(text: bytes) -> int:
    """Returns about how much memory a compiled schema takes, rather too much than too little.

    Args:
        text: The schema's JSON.
    """
    return 1_200 + 3 * len(text) + 250 * text.count(b"{") + 100 * (text.count(b"[") + text.count(b","))


_compiled = _Compiled()


# Keywords


def _matches(pattern: str, text: str) -> bool:
    current.get().step()
    if len(pattern) > _LONGEST_PATTERN:
        raise UnjudgedError("a long pattern")
    try:
        return regex.search(pattern, text, timeout=_MATCH_TIMEOUT_S) is not None
    except TimeoutError as error:
        raise TooMuchWorkError("a slow pattern") from error


def _pattern(_: Any, pattern: str, instance: Any, __: Any) -> Iterator[ValidationError]:
    if isinstance(instance, str) and not _matches(pattern, instance):
        yield ValidationError("the pattern is not found")


def _pattern_properties(validator: Any, patterns: Any, instance: Any, _: Any) -> Iterator[ValidationError]:
    for pattern, schema in patterns.items() if isinstance(instance, dict) else ():
        for name, value in instance.items():
            if _matches(pattern, name):
                yield from validator.descend(value, schema, path=name, schema_path=pattern)


def _unique_items(_: Any, unique: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if unique and isinstance(instance, list) and len(set(map(_identity, instance))) < len(instance):
        yield ValidationError("not unique")


def _enum(_: Any, allowed: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    own = _identity(instance)
    if not any(_identity(each) == own for each in allowed):
        yield ValidationError("not in the enumeration")


def _const(_: Any, allowed: Any, instance: Any, __: Any) -> Iterator[ValidationError]:
    if _identity(allowed) != _identity(instance):
        yield ValidationError("not the constant")


def _additional_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    known = schema.get("properties", {})
    for name, value in instance.items() if isinstance(instance, dict) else ():
        if name not in known:
            if allowed is False:
                yield ValidationError("more properties than there may be")
                return
            yield from validator.descend(value, allowed, path=name)


# The library's own look every name and index up in a list: ten thousand of them take it seconds, without a step.


def _unevaluated_properties(validator: Any, allowed: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, dict):
        evaluated = frozenset(find_evaluated_property_keys_by_schema(validator, instance, schema))
        rest = [value for name, value in instance.items() if name not in evaluated]
        if any(next(validator.descend(value, allowed), None) is not None for value in rest):
            yield ValidationError("an unevaluated property")


def _unevaluated_items(validator: Any, _: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
    if isinstance(instance, list):
        evaluated = frozenset(find_evaluated_item_indexes_by_schema(validator, instance, schema))
        if any(index not in evaluated for index in range(len(instance))):
            yield ValidationError("an unevaluated item")


def _identity(value: Any) -> Any:
    """Returns what is equal for equal JSON: 1 and 1.0 are, 1 and true are not."""
    current.get().step()
    if isinstance(value, dict):
        return frozenset((key, _identity(member)) for key, member in value.items())
    if isinstance(value, list):
        return tuple(map(_identity, value))
    return type(value) is bool, value


def _nothing(*_: Any) -> tuple[()]:
    return ()


def _counted(keyword: Keyword) -> Keyword:
    """Returns a keyword that counts its calls and the errors that it finds."""

    def counting(validator: Any, value: Any, instance: Any, schema: Any) -> Iterator[ValidationError]:
        step = current.get().step
        step()
        for error in keyword(validator, value, instance, schema) or ():
            step()
            yield error

    return counting


def _evolve(validator: Any, **changes: Any) -> Any:
    """Takes the place of a validator's own: `$schema` in a part must not lead to a class that counts nothing."""
    current.get().step()
    schema = changes.get("schema", validator.schema)
    resolver = changes.get("_resolver", validator._resolver)
    return type(validator)(schema, registry=validator._registry, _resolver=resolver)


# Python's own `re` can't be interrupted, and a client's pattern must not stop the gateway for minutes.
_OWN: dict[str, Keyword] = {
    "pattern": _pattern,
    "patternProperties": _pattern_properties,
    "uniqueItems": _unique_items,
    "enum": _enum,
    "const": _const,
    "additionalProperties": _additional_properties,
}
_OWN_OF_LATER_DRAFTS: dict[str, Keyword] = {
    "unevaluatedProperties": _unevaluated_properties,
    "unevaluatedItems": _unevaluated_items,
}
# These two match property names against all sibling patterns with `re`.
_UNCHECKED: dict[str, Keyword] = {"additionalProperties": _nothing, "unevaluatedProperties": _nothing}


@cache
def _validator_class(draft: Any, has_patterns: bool) -> Any:
    later = {} if draft is jsonschema.Draft7Validator else _OWN_OF_LATER_DRAFTS
    keywords: dict[str, Keyword] = {**draft.VALIDATORS, **_OWN, **later, **(_UNCHECKED if has_patterns else {})}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    made: Any = jsonschema.validators.extend(draft, counted)  # type: ignore[no-untyped-call]
    made.evolve = _evolve
    return made
