"""Checks a model's text against a client's JSON schema. Neither is trusted, so no schema may harm the gateway."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Callable, Iterator, Mapping
from functools import cache
from typing import Any

import jsonschema
import msgspec
import referencing
from jsonschema.exceptions import ValidationError

from serve.guard.core.schema_budget import Budget, TooMuchWorkError, UnjudgedError, current
from serve.guard.core.schema_keywords import BESIDE_PATTERNS, DRAFT_7, EVERYWHERE, LATER_DRAFTS, Keyword
from serve.guard.core.schema_shape import check_shape

_CACHE_BYTES = 64 * 1024 * 1024  # of memory, by estimate


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


@cache
def _validator_class(draft: Any, has_patterns: bool) -> Any:
    own = DRAFT_7 if draft is jsonschema.Draft7Validator else LATER_DRAFTS
    keywords = {**draft.VALIDATORS, **EVERYWHERE, **own, **(BESIDE_PATTERNS if has_patterns else {})}
    counted = {name: _counted(keyword) for name, keyword in keywords.items()}
    made: Any = jsonschema.validators.extend(draft, counted)  # type: ignore[no-untyped-call]
    made.evolve = _evolve
    made.descend = _descending(made.descend)
    made.iter_errors = _iterating(made.iter_errors)
    return made


def _descending(plain: Callable[..., Iterator[ValidationError]]) -> Callable[..., Iterator[ValidationError]]:
    """Returns a class's `descend` that counts its calls: a schema without a keyword counts nothing itself."""

    def descend(
        validator: Any, instance: Any, schema: Any, path: Any = None, schema_path: Any = None, resolver: Any = None
    ) -> Iterator[ValidationError]:
        current.get().step()
        if schema is False:
            return iter((_nothing_is_allowed(() if path is None else (path,)),))
        return plain(validator, instance, schema, path, schema_path, resolver)

    return descend


def _iterating(plain: Callable[..., Iterator[ValidationError]]) -> Callable[..., Iterator[ValidationError]]:
    """Returns a class's `iter_errors` that counts its calls."""

    def iter_errors(validator: Any, instance: Any) -> Iterator[ValidationError]:
        current.get().step()
        return iter((_nothing_is_allowed(),)) if validator.schema is False else plain(validator, instance)

    return iter_errors


def _nothing_is_allowed(path: tuple[Any, ...] = ()) -> ValidationError:
    """Returns the error of the schema `false`; the library's own quotes the value."""
    return ValidationError("nothing is allowed", validator="false", validator_value=None, path=path)
