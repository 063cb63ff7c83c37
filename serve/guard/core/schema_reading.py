"""A client's JSON schema in one plain form: what the validator is to see, and the graph that says what it may cost.

Clients send drafts 4 to 2020-12, OpenAPI's dialect and mixtures of all three. What has one meaning only is read as it
is meant, and all of it becomes draft 2020-12. Every reference becomes one into `$defs` of the same document, and ids,
annotations and definitions that nothing refers to are left out: the validator resolves nothing, fetches nothing, and
sees no more than was counted here.
"""

from __future__ import annotations

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from typing import Any
from urllib.parse import unquote, urljoin

from serve.guard.core.schema_cost import SchemaPart, UnjudgedError
from serve.guard.core.schema_pattern import ASCII, Pattern, translate

LATEST = 202012
_DRAFTS = {
    "json-schema.org/draft-04/schema": 4,
    "json-schema.org/draft-06/schema": 6,
    "json-schema.org/draft-07/schema": 7,
    "json-schema.org/draft/2019-09/schema": 201909,
    "json-schema.org/draft/2020-12/schema": LATEST,
}
FORMATS = frozenset({"date-time", "time", "date", "duration", "email", "hostname", "ipv4", "ipv6", "uuid"})
_TYPES = frozenset({"array", "boolean", "integer", "null", "number", "object", "string"})
_OTHER_TYPES = {
    "str": "string", "text": "string", "int": "integer", "int32": "integer", "int64": "integer", "long": "integer",
    "float": "number", "double": "number", "decimal": "number", "bool": "boolean", "dict": "object", "map": "object",
    "list": "array", "none": "null",
}  # fmt: skip

_DEEPEST = 128  # schemas within schemas
_LONGEST_REFERENCE = 2_048  # characters
_MOST_JOINED = 65_536  # characters of all ids, each joined with those around it
_ONE = frozenset(
    {"additionalItems", "additionalProperties", "contains", "else", "if", "items", "not", "propertyNames", "then",
     "unevaluatedItems", "unevaluatedProperties"}
)  # fmt: skip
_LIST = frozenset({"allOf", "anyOf", "items", "oneOf", "prefixItems"})
_MAP = frozenset({"$defs", "definitions", "dependencies", "dependentSchemas", "patternProperties", "properties"})
_REFERENCES = ("$ref", "$dynamicRef", "$recursiveRef")
_REJECTING = ("$ref", "allOf", "const", "else", "enum", "if", "not", "then", "type")  # null, too

_BESIDE = {"exclusiveMaximum": "maximum", "exclusiveMinimum": "minimum"}
# By the first draft that knows them; those that are not here are in all.
_SINCE = {
    6: ("const", "contains", "propertyNames"),
    7: ("else", "if", "then"),
    201909: ("$recursiveRef", "dependentRequired", "dependentSchemas", "maxContains", "minContains", "unevaluatedItems",
             "unevaluatedProperties"),
    LATEST: ("$dynamicRef", "prefixItems"),
}  # fmt: skip

# What reading and compiling takes at most, and then judging one place of a value.
_SCHEMA_S = 12e-6
_VALUE_S = 0.6e-6
_INDEXED_S = 2e-6
_CHARACTER_S = 1e-6  # of a pattern
_KEYWORD_NS = 10.0
_MEMBER_NS = 10.0
_PATTERN_NS = 40.0
_SCALAR_NS = 0.5  # of an enumeration whose values are all texts, or all numbers: it is a set
_MIXED_NS = 30.0
_COMPARED_NS = 150.0
_DIVIDED_NS = 10_000.0
_POINT_NS = 3_000.0
_DIGIT_NS = 100.0
_FORMAT_NS = 250.0
_META_NS = 20_000.0  # the whole metaschema
POINTLESS = "integerWithoutPoint"  # our own keyword: in draft 4, 1.0 is no integer


class Reading:
    """A schema in plain form; of a strict one, formats count.

    `admit` is called with the longest that reading and compiling takes as far as is known, in seconds; it may raise.

    Attributes:
        draft: 4, 6, 7, 201909 or 202012.
        plain: What the validator is to compile.
        parts: The graph of what it may cost.
        regular: False if a pattern needs the engine that tries.

    Raises:
        UnjudgedError: It is not a schema.
    """

    def __init__(self, schema: Any, *, strict: bool, admit: Callable[[float], None]) -> None:
        self.draft = _draft(schema)
        self._readers = _READERS_OF[self.draft]
        self.regular = True
        self.parts: list[SchemaPart] = []
        self._work_s = 0.0
        self._strict = strict
        self._admit = admit
        self._index = _Index(schema, self.draft, self.spend)
        self._places: dict[int, int] = {}  # the part of each schema that is referred to, by the schema's identity
        self._waiting: list[tuple[Any, int]] = []
        self._patterns: dict[str, Pattern] = {}
        self._places[id(schema)] = 0
        root, _ = self._read(schema, 0)
        defs: dict[str, Any] = {}
        while self._waiting:
            target, index = self._waiting.pop()
            defs[f"d{index}"], _ = self._read(target, 0, index)
        if not self.regular and any(part.unevaluated for part in self.parts):
            raise UnjudgedError("look-around beside unevaluated members")  # the validator has no limit for that
        if not self.regular and any(ASCII in pattern.text for pattern in self._patterns.values()):
            raise UnjudgedError("look-around beside bounds of words")  # which its engine does not know in ASCII
        self.plain: Any = {**root, "$defs": defs} if defs else root

    def spend(self, work_s: float) -> None:
        """Counts work that is about to begin."""
        self._work_s += work_s
        self._admit(self._work_s)

    def _read(self, schema: Any, depth: int, index: int | None = None) -> tuple[Any, int]:
        """Returns a schema in plain form, and the index of its part."""
        if index is None:
            index = len(self.parts)
            self.parts.append(SchemaPart())
        if isinstance(schema, bool):
            return schema, index
        if not isinstance(schema, Mapping) or depth > _DEEPEST:
            raise UnjudgedError("not a valid schema")
        self.spend(_SCHEMA_S)
        if self.draft <= 7 and isinstance(schema.get("$ref"), str):  # what is beside it says nothing
            found = {keyword: schema[keyword] for keyword in ("$ref", "nullable") if keyword in schema}
        else:
            found = {keyword: value for keyword, value in schema.items() if value is not None or keyword == "const"}
        step = _Step(self, schema, found, self.parts[index], depth)
        for keyword, value in found.items():
            read = self._readers.get(keyword)
            if read is not None:
                step.part.own_ns += _KEYWORD_NS
                read(step, keyword, value)
        if found.get("nullable") is True:
            step.add_null()
        return step.out, index

    def inner(self, schema: Any, depth: int) -> tuple[Any, int]:
        """Returns a schema within one that is at a depth: in plain form, and the index of its part."""
        if id(schema) in self._index.targets and isinstance(schema, Mapping):
            return self.refer(schema)
        return self._read(schema, depth + 1)

    def refer(self, target: Any) -> tuple[Any, int]:
        """Returns a reference to a schema, which is read once, later."""
        if isinstance(target, bool):
            return self._read(target, 0)
        index = self._places.get(id(target))
        if index is None:
            index = self._places[id(target)] = len(self.parts)
            self.parts.append(SchemaPart())
            self._waiting.append((target, index))
        return {"$ref": f"#/$defs/d{index}" if index else "#"}, index

    def follow(self, schema: Mapping[str, Any], keyword: str) -> tuple[Any, int]:
        """Returns the reference that a schema's keyword makes.

        Raises:
            UnjudgedError: To something outside the document, or to nothing in it.
        """
        target = self._index.resolve(schema, keyword)
        if not isinstance(target, str):
            return self.refer(target)
        index = len(self.parts)
        self.parts.append(SchemaPart(own_ns=_META_NS, any_member=[index], any_item=[index]))
        return {"$ref": target}, index

    def pattern(self, source: Any, part: SchemaPart) -> str:
        """Returns a pattern as the engine reads it, and counts it."""
        if not isinstance(source, str):
            raise UnjudgedError("not a valid schema")
        pattern = self._patterns.get(source)
        if pattern is None:  # the validator compiles each once, too
            self.spend(len(source) * _CHARACTER_S)
            pattern = self._patterns[source] = translate(source)
            self.spend(pattern.compile_s)
        self.regular = self.regular and pattern.regular
        part.own_ns += _PATTERN_NS
        part.searches += not pattern.regular
        part.states += pattern.states
        return pattern.text

    @property
    def formats(self) -> frozenset[str]:
        return FORMATS if self._strict else frozenset()


class _Step:
    """One schema that is being read, with its keywords that say something.

    Attributes:
        out: What the validator is to see.
        part: Takes what it costs.
    """

    def __init__(
        self, reading: Reading, schema: Mapping[str, Any], found: Mapping[str, Any], part: SchemaPart, depth: int
    ) -> None:
        self.out: dict[str, Any] = {}
        self.part = part
        self._reading = reading
        self._schema = schema
        self._found = found
        self._depth = depth

    def add_null(self) -> None:
        """OpenAPI's `nullable`: what could reject null becomes one of two ways."""
        rejecting = {keyword: self.out.pop(keyword) for keyword in _REJECTING if keyword in self.out}
        if rejecting:
            self._all([{"if": {"anyOf": [{"type": "null"}, rejecting]}, "else": False}])
            self.part.own_ns += 4 * _KEYWORD_NS

    def several(self, keyword: str, value: Any) -> None:
        """Reads schemas for the same value.

        An error of `anyOf` or `oneOf` would hold those of all its ways, each with a copy of the value, and so on down;
        as a condition, it holds none.
        """
        plain = self._each(value, self.part.same)
        self._all(plain if keyword == "allOf" else [{"if": {keyword: plain}, "else": False}])

    def refer(self, keyword: str, value: Any) -> None:
        reference, index = self._reading.follow(self._schema, keyword)
        self.part.same.append(index)
        self._reading.spend(_SCHEMA_S)
        if keyword == "$ref" and isinstance(reference, dict):
            self.out |= reference
        else:
            self._all([reference])

    def items(self, keyword: str, value: Any) -> None:
        """Reads `items`, which may be a list, and `prefixItems`."""
        if isinstance(value, list):
            if keyword == "prefixItems" or "prefixItems" not in self._found:
                self.out["prefixItems"] = self._each(value, self.part.listed)
        elif keyword == "items":
            self.out[keyword] = self.inner(value, self.part.one_item)
        else:
            raise UnjudgedError("not a valid schema")

    def additional_items(self, keyword: str, value: Any) -> None:
        """Reads `additionalItems`, which the latest draft calls `items`."""
        if isinstance(self._found.get("items"), list):
            self.out["items"] = self.inner(value, self.part.one_item)

    def unevaluated(self, keyword: str, value: Any) -> None:
        """Reads a schema for members that no other keyword has evaluated."""
        self.part.unevaluated = True
        below = self.part.any_item if keyword == "unevaluatedItems" else self.part.any_member
        self.out[keyword] = self.inner(value, below)

    def properties(self, keyword: str, value: Any) -> None:
        self.part.own_ns += len(_mapping(value)) * _MEMBER_NS
        self.out[keyword] = {}
        for name, schema in _mapping(value).items():
            self.out[keyword][name], self.part.named[name] = self._reading.inner(schema, self._depth)

    def pattern_properties(self, keyword: str, value: Any) -> None:
        """Reads schemas by pattern of a member's name."""
        patterns: dict[str, Any] = {}
        for pattern, schema in _mapping(value).items():
            matcher = SchemaPart()
            index = len(self._reading.parts)
            self._reading.parts.append(matcher)
            translated = self._reading.pattern(pattern, matcher)
            matcher.own_ns += 3 * _KEYWORD_NS
            self.part.any_member.append(index)
            if translated in patterns:
                raise UnjudgedError("two patterns of one meaning")
            patterns[translated] = self.inner(schema, matcher.same)
        self.out[keyword] = patterns

    def dependencies(self, keyword: str, value: Any) -> None:
        """Reads what a member demands: others, or a schema. Later drafts have two keywords for it."""
        for name, demand in _mapping(value).items():
            names = isinstance(demand, list)
            self.part.own_ns += _MEMBER_NS * (1 + len(demand) if isinstance(demand, list) else 1)
            if (names and keyword == "dependentSchemas") or (not names and keyword == "dependentRequired"):
                raise UnjudgedError("not a valid schema")
            read = list(dict.fromkeys(_texts(demand))) if names else self.inner(demand, self.part.same)
            self.out.setdefault("dependentRequired" if names else "dependentSchemas", {})[name] = read

    def types(self, keyword: str, value: Any) -> None:
        """Reads the names of types, also those of other languages; what is no type at all says nothing."""
        if isinstance(value, str) and value in _TYPES:
            self.out[keyword] = value
            self._forbid_points((value,))
            return
        names = [name.strip().lower() for name in ([value] if isinstance(value, str) else _texts(value))]
        plain = list(dict.fromkeys(_OTHER_TYPES.get(name, name) for name in names))
        if plain and _TYPES.issuperset(plain):
            self.out[keyword] = plain if len(plain) > 1 else plain[0]
            self._forbid_points(plain)

    def _forbid_points(self, types: Sequence[str]) -> None:
        if self._reading.draft == 4 and "integer" in types and "number" not in types:
            self.out[POINTLESS] = True
            self.part.own_ns += _POINT_NS

    def required(self, keyword: str, value: Any) -> None:
        """Reads the names of members; a boolean is draft 3's, and says nothing here."""
        if not isinstance(value, bool):
            names = list(dict.fromkeys(_texts(value)))
            self._count(len(names), _MEMBER_NS)
            if names:
                self.out[keyword] = names

    def enumeration(self, keyword: str, value: Any) -> None:
        """Reads values, of which one must be the same. Equal scalars are one, and 1 equals 1.0, but not true."""
        if not isinstance(value, list):
            raise UnjudgedError("not a valid schema")
        self._reading.spend(len(value) * _VALUE_S)
        seen: dict[Any, Any] = {}
        for number, each in enumerate(value):
            seen.setdefault(number if isinstance(each, dict | list) else (isinstance(each, bool), each), each)
        kept = list(seen.values())
        self._count_values(kept)
        if kept:
            self.out[keyword] = kept
        else:
            self._all([False])

    def constant(self, keyword: str, value: Any) -> None:
        """Reads the value that must be the same."""
        self.part.own_ns += _COMPARED_NS
        self._count_values([value])
        self.out[keyword] = value

    def number(self, keyword: str, value: Any) -> None:
        if keyword == "multipleOf":
            self.part.own_ns += _DIVIDED_NS
        if isinstance(value, int) and value.bit_length() > 63:
            self.part.own_ns += value.bit_length() * _DIGIT_NS
        self.out[keyword] = value

    def exclusive(self, keyword: str, value: Any) -> None:
        """Reads a limit that is excluded; draft 4 says so by a boolean beside the limit."""
        limit = self._found.get(_BESIDE[keyword]) if value is True else value
        if limit is not None and limit is not False:
            self.number(keyword, limit)

    def unique(self, keyword: str, value: Any) -> None:
        self.part.compares += value is True
        self.out[keyword] = value

    def pattern(self, keyword: str, value: Any) -> None:
        self.out[keyword] = self._reading.pattern(value, self.part)

    def format(self, keyword: str, value: Any) -> None:
        if isinstance(value, str) and value in self._reading.formats:
            self.part.own_ns += _FORMAT_NS
            self.part.states += 20
            self.out[keyword] = value

    def _all(self, schemas: list[Any]) -> None:
        self.out["allOf"] = [*self.out.get("allOf", ()), *schemas]

    def inner(self, schema: Any, edges: list[int]) -> Any:
        plain, index = self._reading.inner(schema, self._depth)
        edges.append(index)
        return plain

    def _each(self, schemas: Any, edges: list[int]) -> list[Any]:
        if not isinstance(schemas, list):
            raise UnjudgedError("not a valid schema")
        return [self.inner(schema, edges) for schema in schemas]

    def _count(self, values: int, each_ns: float) -> None:
        self._reading.spend(values * _VALUE_S)
        self.part.own_ns += values * each_ns

    def _count_values(self, values: Sequence[Any]) -> None:
        self._count(len(values), _SCALAR_NS if len(set(map(type, values))) == 1 else _MIXED_NS)
        for value in values:
            if isinstance(value, dict | list):
                self._count(sum(1 for _ in _within(value)), _COMPARED_NS)
            elif isinstance(value, int) and value.bit_length() > 63:
                self.part.own_ns += value.bit_length() * _DIGIT_NS


def _schema_for(edges: str) -> Callable[[_Step, str, Any], None]:
    """Returns what reads a schema for those values to which these edges of a `SchemaPart` lead."""

    def read(step: _Step, keyword: str, value: Any) -> None:
        step.out[keyword] = step.inner(value, getattr(step.part, edges))

    return read


_READERS: dict[str, Callable[[_Step, str, Any], None]] = {
    **dict.fromkeys(_REFERENCES, _Step.refer),
    **dict.fromkeys(("else", "if", "not", "then"), _schema_for("same")),
    **dict.fromkeys(("allOf", "anyOf", "oneOf"), _Step.several),
    **dict.fromkeys(("items", "prefixItems"), _Step.items),
    "additionalItems": _Step.additional_items,
    "contains": _schema_for("any_item"),
    **dict.fromkeys(("unevaluatedItems", "unevaluatedProperties"), _Step.unevaluated),
    "additionalProperties": _schema_for("one_member"),
    "propertyNames": _schema_for("any_member"),
    "properties": _Step.properties,
    "patternProperties": _Step.pattern_properties,
    **dict.fromkeys(("dependencies", "dependentRequired", "dependentSchemas"), _Step.dependencies),
    "type": _Step.types,
    "required": _Step.required,
    "enum": _Step.enumeration,
    "const": _Step.constant,
    **dict.fromkeys(("exclusiveMaximum", "exclusiveMinimum"), _Step.exclusive),
    **dict.fromkeys(
        ("maxContains", "maxItems", "maxLength", "maxProperties", "maximum", "minContains", "minItems", "minLength",
         "minProperties", "minimum", "multipleOf"),
        _Step.number,
    ),
    "uniqueItems": _Step.unique,
    "pattern": _Step.pattern,
    "format": _Step.format,
}  # fmt: skip

_READERS_OF = {
    draft: {
        keyword: read
        for keyword, read in _READERS.items()
        if not any(keyword in keywords for since, keywords in _SINCE.items() if since > draft)
        and (keyword != "$recursiveRef" or draft == 201909)
    }
    for draft in _DRAFTS.values()
}


class _Index:
    """The targets of the references in a document.

    `spend` is called with the work that is about to begin, in seconds.

    Attributes:
        targets: Identities of the schemas that are referred to.

    Raises:
        UnjudgedError: A reference is no URI, or all are too long.
    """

    def __init__(self, root: Any, draft: int, spend: Callable[[float], None]) -> None:
        self.targets: set[int] = set()
        self._draft = draft
        self._ids = ("id",) if draft == 4 else ("$id", "id") if draft == LATEST else ("$id",)
        self._root = root
        self._spend = spend
        self._joined = 0
        self._bases: dict[int, str] = {}
        self._resources: dict[str, Any] = {"": root}
        self._anchors: dict[tuple[str, str], Any] = {}
        self._dynamic: Counter[str] = Counter()
        self._references: list[tuple[Mapping[str, Any], str]] = []
        self._resolved: dict[tuple[int, str], Any] = {}
        self._walk(root, "", 0)
        while self._references:
            schema, keyword = self._references.pop()
            target = self._look_up(schema[keyword], self._bases[id(schema)], keyword)
            self._resolved[id(schema), keyword] = target
            if isinstance(target, Mapping):
                self.targets.add(id(target))
                if id(target) not in self._bases:  # within something that is no schema, such as OpenAPI's components
                    self._walk(target, self._bases[id(schema)], 0)

    def resolve(self, schema: Mapping[str, Any], keyword: str) -> Any:
        """Returns what a schema's reference refers to: a schema, or the URI of a metaschema.

        Raises:
            UnjudgedError: Nothing in the document.
        """
        target = self._resolved.get((id(schema), keyword))
        if not isinstance(target, Mapping | bool | str):
            raise UnjudgedError("a reference to nothing in the schema")
        return target

    def _walk(self, schema: Any, base: str, depth: int) -> None:
        self._spend(_INDEXED_S)
        if not isinstance(schema, Mapping) or id(schema) in self._bases:
            return
        if depth > _DEEPEST:
            raise UnjudgedError("not a valid schema")
        named = self._named(schema, base)
        if not (self._draft <= 7 and isinstance(schema.get("$ref"), str)):  # what is beside it says nothing
            base = named
        self._bases[id(schema)] = base
        self._references += [(schema, keyword) for keyword in _REFERENCES if isinstance(schema.get(keyword), str)]
        for keyword, value in schema.items():
            for each in _schemas(keyword, value):
                self._walk(each, base, depth + 1)

    def _named(self, schema: Mapping[str, Any], base: str) -> str:
        """Notes the names of a schema; returns its base URI."""
        for keyword in self._ids:
            name = schema.get(keyword)
            if isinstance(name, str) and name:
                plain, _, anchor = name.partition("#")
                if plain:
                    base = self._join(base, plain)
                    self._note(self._resources, base, schema)
                if anchor:
                    self._note(self._anchors, (base, anchor), schema)
                break
        for keyword in ("$anchor", "$dynamicAnchor"):
            name = schema.get(keyword)
            if isinstance(name, str):
                self._note(self._anchors, (base, name), schema)
        dynamic = schema.get("$dynamicAnchor")
        if isinstance(dynamic, str):
            self._dynamic[dynamic] += 1
        if schema.get("$recursiveAnchor") is True:
            self._dynamic["#"] += 1
        return base

    @staticmethod
    def _note(names: dict[Any, Any], name: Any, schema: Any) -> None:
        names[name] = None if names.get(name, schema) is not schema else schema  # a name of two is nobody's

    def _join(self, base: str, reference: str) -> str:
        self._joined += len(base) + len(reference)
        if len(reference) > _LONGEST_REFERENCE or self._joined > _MOST_JOINED:
            raise UnjudgedError("long references")
        self._spend(2 * _INDEXED_S + len(base) * 1e-8)
        try:
            return urljoin(base, reference) if base else reference
        except ValueError as error:
            raise UnjudgedError("a reference that is no URI") from error

    def _look_up(self, reference: str, base: str, keyword: str) -> Any:
        """Returns what a reference refers to; None if it is nothing here."""
        plain, _, fragment = reference.partition("#")
        if len(reference) > _LONGEST_REFERENCE:
            raise UnjudgedError("long references")
        self._spend(_INDEXED_S)
        uri = self._join(base, plain) if plain else base
        if uri not in self._resources:
            return reference if _draft({"$schema": uri}, 0) and not fragment else None
        place = self._resources[uri]
        if fragment.startswith("/"):
            target = _at_pointer(place, fragment)
            return _at_pointer(self._root, fragment) if target is None else target  # ids are often but names
        if not fragment:
            return None if keyword == "$recursiveRef" and self._dynamic["#"] > 1 else place
        if keyword == "$dynamicRef" and self._dynamic[fragment] > 1:
            return None  # which of them depends on the way that led there
        return self._anchors.get((uri, unquote(fragment)))


def _draft(schema: Any, default: int = LATEST) -> int:
    uri = schema.get("$schema") if isinstance(schema, Mapping) else None
    plain = uri.strip().rstrip("#").partition("://")[2] if isinstance(uri, str) else ""
    return _DRAFTS.get(plain, default)


def _schemas(keyword: str, value: Any) -> Iterator[Any]:
    if keyword in _MAP:
        yield from value.values() if isinstance(value, Mapping) else ()
    elif keyword in _LIST and isinstance(value, list):
        yield from value
    elif keyword in _ONE:
        yield value


def _at_pointer(place: Any, pointer: str) -> Any:
    """Returns what a JSON pointer leads to; None if that is nothing."""
    for escaped in unquote(pointer).split("/")[1:]:
        name = escaped.replace("~1", "/").replace("~0", "~")
        if isinstance(place, list) and name.isdigit() and int(name) < len(place):
            place = place[int(name)]
        elif isinstance(place, Mapping) and name in place:
            place = place[name]
        else:
            return None
    return place if isinstance(place, Mapping | bool) else None


def _within(value: Any) -> Iterator[Any]:
    """Yields a value and all that it holds."""
    waiting = [value]
    while waiting:
        each = waiting.pop()
        yield each
        if isinstance(each, dict):
            waiting.extend(each.values())
        elif isinstance(each, list):
            waiting.extend(each)


def _mapping(value: Any) -> Mapping[str, Any]:
    if not isinstance(value, Mapping):
        raise UnjudgedError("not a valid schema")
    return value


def _texts(value: Any) -> list[str]:
    if not isinstance(value, list) or not all(isinstance(each, str) for each in value):
        raise UnjudgedError("not a valid schema")
    return value
