"""Judges a model's text by a client's JSON schema, whole or as it grows. Neither is trusted: no schema may harm us.

Of a value that is not whole yet, the outline of its schema says which values may begin, go on and end at a place. Where
that can be told from the beginning of a value, there is a rule to follow. Any other value is judged as soon as it is
whole, by the part of the schema that is for it, or waits for the verdict on the document.
"""

from __future__ import annotations

import math
from collections import OrderedDict
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from functools import cached_property
from itertools import takewhile
from typing import Any, cast

import jsonschema_rs
import msgspec

from serve.guard.core.schema_cost import Budget, Cost, TooMuchWorkError, UnjudgedError, ValueSize, measure
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

# The outline

_MOST_PARTS = 64  # schemas for one value that are put together
_MOST_JUDGES = 64  # compiled parts of one schema
_DEEPEST = 32  # to which it is asked whether there is a value at all
_TYPE_OF = {"{": "object", "[": "array", '"': "string", "t": "boolean", "f": "boolean", "n": "null"}
_TYPE_OF_VALUE: dict[type, str] = {
    dict: "object", list: "array", str: "string", bool: "boolean", type(None): "null", int: "number", float: "number",
}  # fmt: skip
# By type, the keywords that apply to its values. Those that are in no row apply to all.
_OF_TYPE = {
    "object": frozenset({"properties", "required", "additionalProperties", "patternProperties", "propertyNames",
                         "minProperties", "maxProperties", "dependentRequired", "dependentSchemas",
                         "unevaluatedProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems", "uniqueItems", "contains", "minContains",
                        "maxContains", "unevaluatedItems"}),
    "string": frozenset({"minLength", "maxLength", "pattern", "format"}),
    "number": frozenset({"minimum", "maximum", "exclusiveMinimum", "exclusiveMaximum", "multipleOf"}),
    "boolean": frozenset(),
    "null": frozenset(),
}  # fmt: skip
# Those of them that can be followed from the value's beginning on.
_FOLLOWED = {
    "object": frozenset({"properties", "required", "additionalProperties"}),
    "array": frozenset({"items", "prefixItems", "minItems", "maxItems"}),
    "string": frozenset({"minLength", "maxLength"}),
}
_COMBINED = ("$ref", "$defs", "allOf")
_raw = msgspec.json.Encoder().encode


class Schema:
    """A JSON schema of the request, compiled on first use; None accepts everything. References are never fetched.

    All schemas of a request share a budget. Of a strict one, formats count, too.
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

    @property
    def takes_nothing(self) -> bool:
        """True if it says that its object has no members, whatever else it says."""
        schema = self._schema
        return (
            isinstance(schema, Mapping)
            and schema.get("additionalProperties") is False
            and not (schema.get("properties") or schema.get("patternProperties"))
        )

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
    """A schema that is ready to judge values. Of a strict one, formats count.

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
        """Returns where and by which keyword a value fails, parsed from so many characters; None if it does not.

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
            budget.admit(self._cost.search_bound_s(measure(value, math.inf, budget.share_s), value))
        except TooMuchWorkError:
            if not self._regular:
                raise  # the engine may have given up
            return "a place that would take too long to find"
        error: jsonschema_rs.ValidationError = _guarded(_first_error, self._validator, value)
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

    def get(self, schema: Any, strict: bool, budget: Budget) -> Compiled:
        """Returns a schema, compiled.

        Raises:
            UnjudgedError: It is not valid, or may take too long.
        """
        text: bytes = _guarded(msgspec.json.encode, schema)
        compiled = self._kept.get((text, strict))
        if compiled is not None:
            self._kept.move_to_end((text, strict))
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
    """Returns about how much memory a compiled schema takes, rather too much than too little, by its JSON."""
    return 4_000 + 6 * len(text) + 1_000 * text.count(b"{") + 100 * (text.count(b"[") + text.count(b","))


_compiled = _Cache()


def _first_error(validator: jsonschema_rs.Validator, value: Any) -> jsonschema_rs.ValidationError:
    """Returns the first error of a value that is not valid."""
    try:
        validator.validate(value)
    except jsonschema_rs.ValidationError as error:
        return error
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


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """An object whose members can be followed one by one.

    Attributes:
        named: Schemas by member.
        other: The schema of all other members.
    """

    named: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    other: Any = True

    def member(self, name: str) -> Any:
        return self.named.get(name, self.other)


@dataclass(frozen=True, slots=True)
class ListRule:
    """A list whose items can be followed one by one.

    Attributes:
        first: Schemas of the first items.
        other: The schema of those behind.
        least: Number of items that it must have.
        most: Number of items that it may have.
    """

    first: Sequence[Any] = ()
    other: Any = True
    least: float = 0
    most: float = math.inf

    def item(self, number: int) -> Any:
        if number >= self.most:
            return False
        return self.first[number] if number < len(self.first) else self.other


@dataclass(frozen=True, slots=True)
class TextRule:
    """A string of which any beginning will do."""

    least: float = 0
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class WholeRule:
    """A value that shows only at its end whether it is right."""

    schema: Any


Rule = ObjectRule | ListRule | TextRule | WholeRule


def names_of(schema: Any) -> Collection[str]:
    """Returns the names of the members of a schema's objects; none where it says that others are as good."""
    if not isinstance(schema, dict) or schema.get("additionalProperties") or schema.get("patternProperties"):
        return ()
    properties = schema.get("properties")
    return properties if isinstance(properties, dict) else ()


class SchemaOutline:
    """A schema, asked piece by piece.

    Args:
        plain: The schema in plain form.
        compile_: Returns what judges values by a part of it.
        bound_s: Returns the longest that judging a value of a size takes.
    """

    def __init__(
        self,
        plain: Any,
        compile_: Callable[[Any], Callable[[Any], bool]],
        bound_s: Callable[[ValueSize], float],
    ) -> None:
        self.plain = plain
        self.bound_s = bound_s
        self._compile = compile_
        self._defs: Mapping[str, Any] = plain.get("$defs", {}) if isinstance(plain, dict) else {}
        self._rules: dict[tuple[int, str], Rule] = {}
        self._judges: dict[int, Callable[[Any], bool]] = {}
        self._possible: dict[int, bool] = {}  # whether a part may have values

    def rule(self, schema: Any, sign: str) -> Rule:
        """Returns the rule for a value that begins with a sign, by its schema, which is a part of the whole."""
        kind = _TYPE_OF.get(sign, "number")
        key = id(schema), kind
        found = self._rules.get(key)
        if found is None:
            found = self._rules[key] = self._read(schema, kind)
        return found

    def accepts(self, schema: Any, value: Any) -> bool:
        """Returns whether a part of the schema accepts a value; False if that can't be decided.

        Raises:
            UnjudgedError: The part can't be compiled.
        """
        if schema is True:
            return True
        judge = self._judges.get(id(schema))
        if judge is None:
            if schema is False or len(self._judges) == _MOST_JUDGES:
                return False
            judge = self._judges[id(schema)] = self._judge(schema)
        return judge(value)

    def _judge(self, schema: Any) -> Callable[[Any], bool]:
        text = _raw(schema)
        if b'"$ref"' in text:
            text = _raw({**schema, "$defs": self._defs})
            if b'"$ref":"#"' in text:  # to the whole, which this is not
                return _never
            schema = {**schema, "$defs": self._defs}
        return self._compile(schema)

    def _read(self, schema: Any, kind: str) -> Rule:
        rule = self._rule_of(schema, kind)
        return rule if self._has_values(rule, 0) else WholeRule(schema)

    def _rule_of(self, schema: Any, kind: str) -> Rule:
        parts = self._parts(schema, kind)
        if parts is None or not all(_admits(part, kind) for part in parts):
            return WholeRule(schema)
        told = [{name: part[name] for name in part if _tells(name, kind)} for part in parts]
        told = [each for each in told if each]
        integer = kind == "number" and any("type" in part and "number" not in _types(part) for part in parts)
        if len(told) > 1 or integer or not all(each.keys() <= _FOLLOWED.get(kind, frozenset()) for each in told):
            return WholeRule(schema)
        return _rule(told[0] if told else {}, kind)

    def _parts(self, schema: Any, kind: str) -> list[Mapping[str, Any]] | None:
        """Returns the schemas that a value of a type must satisfy; None if it is not clear which these are."""
        waiting = [schema]
        parts: list[Mapping[str, Any]] = []
        for _ in range(_MOST_PARTS):
            if not waiting:
                return parts
            each = waiting.pop()
            if each is True:
                continue
            if each is False:
                return None
            if "$ref" in each:
                waiting.append(self._target(each["$ref"]))
            for inner in each.get("allOf", ()):
                ways = _ways(inner)
                fitting = [way for way in ways if self._may_be(way, kind)]
                if len(fitting) != 1:  # of several, the value's end may decide
                    return None
                waiting += fitting
            if own := {name: value for name, value in each.items() if name not in _COMBINED}:
                parts.append(own)
        return None

    def _target(self, reference: str) -> Any:
        """Returns what a reference in plain form leads to; nothing that is accepted, if it is a metaschema."""
        if reference == "#":
            return self.plain
        return self._defs.get(reference.removeprefix("#/$defs/"), False)

    def _may_be(self, schema: Any, kind: str) -> bool:
        """Returns whether a schema may accept a value of a type."""
        for _ in range(_MOST_PARTS):
            if isinstance(schema, bool):
                return schema
            if not _admits(schema, kind):
                return False
            if "$ref" not in schema:
                return True
            schema = self._target(schema["$ref"])
        return True

    def _has_values(self, rule: Rule, depth: int) -> bool:
        """Returns False if it is plain that nothing satisfies a rule."""
        if isinstance(rule, TextRule):
            return rule.least <= rule.most
        if isinstance(rule, ListRule):
            needed = [rule.item(number) for number in range(int(min(rule.least, _MOST_PARTS)))]
            return rule.least <= rule.most and all(self._is_possible(each, depth) for each in needed)
        if isinstance(rule, ObjectRule):
            return all(self._is_possible(rule.member(name), depth) for name in rule.required)
        return True

    def _is_possible(self, schema: Any, depth: int) -> bool:
        if isinstance(schema, bool) or depth == _DEEPEST:
            return schema is not False
        known = self._possible.get(id(schema))
        if known is None:
            self._possible[id(schema)] = True  # as far as is known, should it hold itself
            kinds = [kind for kind in _OF_TYPE if self._may_be(schema, kind)]
            known = any(self._has_values(self._rule_of(schema, kind), depth + 1) for kind in kinds)
            self._possible[id(schema)] = known
        return known


def _rule(told: Mapping[str, Any], kind: str) -> Rule:
    """Returns the rule that some keywords make for values of a type."""
    if kind == "object":
        named, other = told.get("properties", {}), told.get("additionalProperties", True)
        return ObjectRule(named, frozenset(told.get("required", ())), other)
    if kind == "array":
        first, other = told.get("prefixItems", ()), told.get("items", True)
        return ListRule(first, other, told.get("minItems", 0), told.get("maxItems", math.inf))
    if kind == "string":
        return TextRule(told.get("minLength", 0), told.get("maxLength", math.inf))
    return WholeRule(True)


def _tells(keyword: str, kind: str) -> bool:
    """Returns whether a keyword says anything of the values of a type, beside that they are of it."""
    if keyword == "type":
        return False
    return keyword in _OF_TYPE[kind] or not any(keyword in keywords for keywords in _OF_TYPE.values())


def _ways(schema: Any) -> Sequence[Any]:
    """Returns the schemas of which a value must satisfy one; only the schema itself where there is no choice."""
    if isinstance(schema, dict) and schema.keys() == {"if", "else"} and schema["else"] is False:
        condition = schema["if"]
        if isinstance(condition, dict) and len(condition) == 1:
            ((keyword, ways),) = condition.items()
            if keyword in ("anyOf", "oneOf"):
                return cast("Sequence[Any]", ways)
        return [condition]
    return [schema]


def _admits(schema: Mapping[str, Any], kind: str) -> bool:
    """Returns whether a schema's own keywords let a value of a type be."""
    if "const" in schema and _TYPE_OF_VALUE[type(schema["const"])] != kind:
        return False
    if "enum" in schema and kind not in {_TYPE_OF_VALUE[type(value)] for value in schema["enum"]}:
        return False
    types = _types(schema)
    return not types or kind in types or (kind == "number" and "integer" in types)


def _types(schema: Mapping[str, Any]) -> Collection[str]:
    """Returns the types that a schema names; none, if it has any."""
    types = schema.get("type", ())
    return (types,) if isinstance(types, str) else types


def _never(_: Any) -> bool:
    return False
