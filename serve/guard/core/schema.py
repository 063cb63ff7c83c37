"""Checks a model's text against a client's JSON schema. Neither is trusted, so no schema may harm the gateway."""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping
from functools import cached_property
from itertools import takewhile
from typing import Any

import jsonschema_rs
import msgspec

from serve.guard.core.schema_budget import Budget, TooMuchWorkError, UnjudgedError
from serve.guard.core.schema_cost import Cost, ValueSize, measure
from serve.guard.core.schema_outline import SchemaOutline, names_of
from serve.guard.core.schema_reading import POINTLESS, Reading

_CACHE_BYTES = 64 * 1024 * 1024  # of memory, by estimate
_EXPANDED_S = 3e-6  # to compile one schema that is written out
_SHORT_S = 1e-3  # to judge what is short; its size is not worth measuring
_LENGTHS = (128, 256, 512, 1024, 2048, 4096)  # of what may be

_REGULAR = jsonschema_rs.RegexOptions(size_limit=2**22, dfa_size_limit=2**22)
_SEARCHING = jsonschema_rs.FancyRegexOptions(backtrack_limit=2_000, size_limit=2**22, dfa_size_limit=2**22)
_FORBIDDING = frozenset(
    {"additionalProperties", "contains", "else", "items", "then", "unevaluatedItems", "unevaluatedProperties"}
)
_GAVE_UP = (
    jsonschema_rs.ValidationErrorKind.BacktrackLimitExceeded,
    jsonschema_rs.ValidationErrorKind.RegexEngineFailure,
)


class Schema:
    """A JSON schema of the request, compiled on first use. References are never fetched.

    Args:
        schema: As the request has it; None accepts everything.
        strict: Whether the request asks to enforce it; then formats count, too.
        budget: Shared by all schemas of a request; one of its own if not given.
    """

    def __init__(self, schema: Any, *, strict: bool, budget: Budget | None = None) -> None:
        self.strict = strict
        self._schema = schema
        self._budget = budget or Budget()
        self._budget.schemas += schema is not None
        self._unjudged: UnjudgedError | None = None
        self._compiled: Compiled | None = None

    @property
    def is_of_objects(self) -> bool:
        return isinstance(self._schema, Mapping) and bool(self._schema.get("type") == "object")

    @property
    def names(self) -> Collection[str]:
        """The names of its objects' members; none where it says that others are as good."""
        return names_of(self._schema)

    def mismatch(self, value: Any, chars: float = math.inf) -> str | None:
        """Returns where and by which keyword `value` fails; None if it does not.

        Args:
            value: Of JSON.
            chars: Of the JSON that it was parsed from, if that is known: of a short one less has to be found out.

        Raises:
            UnjudgedError: The schema can't be applied, or not within the budget.
        """
        if self._schema is None:
            return None
        with self._budget:
            return self._compile().mismatch(value, chars, self._budget)

    def outline(self) -> SchemaOutline:
        """Returns the schema as it judges a value that is not whole yet.

        Raises:
            UnjudgedError: The schema can't be applied, or not within the budget.
        """
        kept = _compiled.kept(msgspec.json.encode(self._schema), self.strict)
        if kept is not None:
            self._compiled = kept
            return kept.outline
        with self._budget:
            return self._compile().outline

    def _compile(self) -> Compiled:
        if self._unjudged is not None:
            raise self._unjudged
        if self._compiled is None:
            try:
                self._compiled = _compiled.get(self._schema, self.strict, self._budget)
            except UnjudgedError as error:
                self._unjudged = error
                raise
        return self._compiled


class Compiled:
    """A schema that is ready to judge values.

    Args:
        schema: As the request has it.
        strict: Whether formats count.
        budget: What it may take.

    Raises:
        UnjudgedError: It is not valid, or reading or compiling it may take too long.
    """

    def __init__(self, schema: Any, *, strict: bool, budget: Budget) -> None:
        reading: Reading = _guarded(Reading, schema, strict=strict, admit=budget.admit)
        self._cost = Cost(reading.parts)
        self._regular = reading.regular
        self._plain = reading.plain
        reading.spend(self._cost.expanded * _EXPANDED_S)
        self._validator = self._validator_of(reading.plain)

    @cached_property
    def outline(self) -> SchemaOutline:
        """The schema as it judges a value that is not whole yet."""
        return SchemaOutline(self._plain, self._judge_of, self._cost.bound_s)

    def _judge_of(self, plain: Any) -> Callable[[Any], bool]:
        """Returns what judges values by a part of the schema."""
        validator = self._validator_of(plain)
        return lambda value: bool(_guarded(validator.is_valid, value))

    def _validator_of(self, plain: Any) -> jsonschema_rs.Draft202012Validator:
        validator: jsonschema_rs.Draft202012Validator = _guarded(
            jsonschema_rs.Draft202012Validator,
            plain,
            validate_formats=True,
            offline=True,
            pattern_options=_REGULAR if self._regular else _SEARCHING,
            keywords={POINTLESS: _Pointless},
        )
        return validator

    @cached_property
    def _short_chars(self) -> int:
        """The length of JSON up to which no value can take longer than `_SHORT_S`."""
        if self._cost.reach == math.inf:
            return 0
        fitting = takewhile(lambda chars: self._cost.bound_s(ValueSize.most(chars)) <= _SHORT_S, _LENGTHS)
        return max(fitting, default=0)

    def mismatch(self, value: Any, chars: float, budget: Budget) -> str | None:
        """Returns where and by which keyword a value fails; None if it does not.

        Args:
            value: Of JSON.
            chars: Of the JSON that it was parsed from.
            budget: What judging it may take.

        Raises:
            UnjudgedError: It can't be judged within the budget.
        """
        if chars > self._short_chars or budget.share_s < _SHORT_S:
            size = measure(value, self._cost.reach, budget.share_s)
            if self._cost.bound_s(size) > budget.share_s:
                budget.admit(self._cost.bound_s(size, value))
        if _guarded(self._validator.is_valid, value):
            return None
        try:
            budget.admit(self._cost.search_bound_s(measure(value, math.inf, budget.share_s)))
        except TooMuchWorkError:
            if not self._regular:
                raise  # the engine may have given up
            return "a place that would take too long to find"
        error = _first_error(self._validator, value)
        if isinstance(error.kind, _GAVE_UP):
            raise TooMuchWorkError("a slow pattern")
        return f"{_json_path(error.instance_path)}: {_keyword(error, self._plain)}"


class _Cache:
    """Compiled schemas, the least recently used ones dropped once all are over the limit.

    Attributes:
        size_bytes: Estimate of what they take.
    """

    def __init__(self) -> None:
        self.size_bytes = 0
        self._kept: OrderedDict[tuple[bytes, bool], Compiled] = OrderedDict()

    def kept(self, text: bytes, strict: bool) -> Compiled | None:
        """Returns a schema that has been compiled before; None if it is not at hand.

        Args:
            text: The schema's JSON.
            strict: Whether formats count.
        """
        compiled = self._kept.get((text, strict))
        if compiled is not None:
            self._kept.move_to_end((text, strict))
        return compiled

    def get(self, schema: Any, strict: bool, budget: Budget) -> Compiled:
        """Returns a schema, compiled.

        Raises:
            UnjudgedError: It is not valid, or may take too long.
        """
        text = msgspec.json.encode(schema)
        compiled = self.kept(text, strict)
        if compiled is not None:
            return compiled
        compiled = Compiled({} if schema is None else schema, strict=strict, budget=budget)
        size = estimated_bytes(text)
        if size > _CACHE_BYTES // 8:
            return compiled  # a giant must not drive out everybody else's
        self._kept[text, strict] = compiled
        self.size_bytes += size
        while self.size_bytes > _CACHE_BYTES:
            (dropped, _), _ = self._kept.popitem(last=False)
            self.size_bytes -= estimated_bytes(dropped)
        return compiled


def estimated_bytes(text: bytes) -> int:
    """Returns about how much memory a compiled schema takes, rather too much than too little.

    Args:
        text: The schema's JSON.
    """
    return 4_000 + 6 * len(text) + 1_000 * text.count(b"{") + 100 * (text.count(b"[") + text.count(b","))


_compiled = _Cache()


def _first_error(validator: jsonschema_rs.Validator, value: Any) -> jsonschema_rs.ValidationError:
    """Returns the first error of a value that is not valid."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return error
    except (KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise UnjudgedError(type(error).__name__) from error
    raise UnjudgedError("a validator that disagrees with itself")


def _keyword(error: jsonschema_rs.ValidationError, plain: Any) -> str:
    """Returns the keyword that a value fails, as the client knows it; the schema `false` has none."""
    if error.kind.name == POINTLESS:
        return "type"
    if not isinstance(error.kind, jsonschema_rs.ValidationErrorKind.FalseSchema):
        return error.kind.name
    *path, last = error.schema_path or ("",)
    if path[-1:] in (["properties"], ["patternProperties"]) or last not in _FORBIDDING:
        return "false"
    for step in path:
        plain = plain[step]
    condition = plain.get("if") if last == "else" else None
    return next((keyword for keyword in ("anyOf", "oneOf") if keyword in (condition or ())), str(last))


class _Pointless:
    """A keyword: no number with a point."""

    def __init__(self, *_: Any) -> None:
        pass

    def validate(self, value: Any) -> None:
        """Raises ValueError for a number with a point."""
        if isinstance(value, float):
            raise ValueError


def _json_path(path: list[str | int]) -> str:
    return "$" + "".join(f"[{step}]" if isinstance(step, int) else f".{step}" for step in path)


def _guarded(work: Callable[..., Any], *args: Any, **kwargs: Any) -> Any:
    """Returns what the work returns. It may raise anything: schemas are as odd as clients like, native code panics."""
    try:
        return work(*args, **kwargs)
    except (UnjudgedError, KeyboardInterrupt, SystemExit, GeneratorExit):
        raise
    except BaseException as error:
        raise UnjudgedError(type(error).__name__) from error
