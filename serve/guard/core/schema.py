"""Checks a model's text against a client's JSON schema. Neither is trusted, so no schema may harm the gateway."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from contextvars import ContextVar
from functools import cache
from time import perf_counter, thread_time
from typing import Any

import jsonschema
import msgspec
import referencing
import regex
from jsonschema.exceptions import ValidationError

from serve.guard.core.schema_shape import check_shape

_BUDGET_S = 0.02
_MATCH_TIMEOUT_S = 0.01
_LONGEST_PATTERN = 512  # characters; the compiler of patterns can't be interrupted
_CACHE_BYTES = 64 * 1024 * 1024  # of memory, by estimate

Keyword = Callable[[Any, Any, Any, Any], Any]


class UnjudgedError(Exception):
    """A schema could not be applied: it is not valid, or it takes more time than a request may."""


class TooMuchWorkError(UnjudgedError):
    """It takes more time than a request may."""


class Budget:
    """The time that all of one request's schemas may take together.

    Where there are several, none takes more than half of what is left, so that one tool's schema cannot leave all the
    others unjudged.

    Every step asks the clock, which is cheap; only a step that comes late asks how much of that time was really ours,
    because a busy machine is not the schema's fault.

    Args:
        limit_s: Of CPU time.

    Attributes:
        schemas: Number of schemas that share it.
    """

    def __init__(self, limit_s: float = _BUDGET_S) -> None:
        self.schemas = 0
        self._left_s = limit_s
        self._share_s = limit_s
        self._began_s = 0.0
        self._deadline_s = 0.0

    def begin(self) -> None:
        """Starts a check."""
        self._began_s = thread_time()
        self._share_s = self._left_s / 2 if self.schemas > 1 else self._left_s
        self._deadline_s = perf_counter() + self._share_s

    def end(self) -> None:
        """Ends a check; what is left is for the next."""
        self._left_s -= thread_time() - self._began_s

    def step(self) -> None:
        """Counts a step of bounded work.

        Raises:
            TooMuchWorkError: The check's share is spent.
        """
        if perf_counter() > self._deadline_s:
            left_s = self._share_s - (thread_time() - self._began_s)
            if left_s <= 0:
                raise TooMuchWorkError("too much work")
            self._deadline_s = perf_counter() + left_s


_budget: ContextVar[Budget] = ContextVar("budget")


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
        token = _budget.set(self._budget)
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
            _budget.reset(token)


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
        if not check_shape(schema, _budget.get().step):
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
    _budget.get().step()
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


def _identity(value: Any) -> Any:
    """Returns what is equal for equal JSON: 1 and 1.0 are, 1 and true are not."""
    _budget.get().step()
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
        step = _budget.get().step
        step()
        for error in keyword(validator, value, instance, schema) or ():
            step()
            yield error

    return counting


def _evolve(validator: Any, **changes: Any) -> Any:
    """Takes the place of a validator's own: `$schema` in a part must not lead to a class that counts nothing."""
    _budget.get().step()
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
}
# These two match property names against all sibling patterns with `re`.
_UNCHECKED: dict[str, Keyword] = {"additionalProperties": _nothing, "unevaluatedProperties": _nothing}


@cache
def _validator_class(draft: Any, has_patterns: bool) -> Any:
    keywords: dict[str, Keyword] = {**draft.VALIDATORS, **_OWN, **(_UNCHECKED if has_patterns else {})}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    made: Any = jsonschema.validators.extend(draft, counted)  # type: ignore[no-untyped-call]
    made.evolve = _evolve
    return made
