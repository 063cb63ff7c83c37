"""A schema, applied to a value that is not whole yet: which values may begin, go on and end at a place.

Where that can be told from the beginning of a value, there is a rule to follow. Any other value is judged as soon as it
is whole, by the part of the schema that is for it, or waits for the verdict on the document.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Collection, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, cast

import msgspec

from serve.guard.core.schema_cost import ValueSize

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
    "number": frozenset(),
    "boolean": frozenset(),
    "null": frozenset(),
}
_COMBINED = ("$ref", "$defs", "allOf")
_raw = msgspec.json.Encoder().encode


@dataclass(frozen=True, slots=True)
class ObjectRule:
    """An object whose members can be followed one by one.

    Attributes:
        named: Schemas by member.
        required: Members that it must have.
        other: The schema of all other members.
    """

    named: Mapping[str, Any] = field(default_factory=dict)
    required: frozenset[str] = frozenset()
    other: Any = True

    def member(self, name: str) -> Any:
        """Returns the schema of a member."""
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
        """Returns the schema of an item."""
        if number >= self.most:
            return False
        return self.first[number] if number < len(self.first) else self.other


@dataclass(frozen=True, slots=True)
class TextRule:
    """A string of which any beginning will do.

    Attributes:
        least: Characters that it must have.
        most: Characters that it may have.
    """

    least: float = 0
    most: float = math.inf


@dataclass(frozen=True, slots=True)
class WholeRule:
    """A value that shows only at its end whether it is right.

    Attributes:
        schema: That judges it.
    """

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
        """Returns the rule for a value.

        Args:
            schema: For the value; a part of the whole.
            sign: The value's first character.
        """
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
        if len(told) > 1 or integer or not all(each.keys() <= _FOLLOWED[kind] for each in told):
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
