"""Turns the text of one argument into the JSON value that the tool's schema asks for.

Strings stream, all else waits for its closing tag: a class for each way in which a format tells the type. Blanks around
the text that are markup are taken off here. `types_of` reads the types out of a schema, `coerce` the text as one of
them.
"""

from __future__ import annotations

import ast
import json
import math
import re
from collections.abc import Callable, Iterable, Iterator, Mapping
from functools import reduce
from json.encoder import encode_basestring
from typing import Any, NamedTuple
from urllib.parse import unquote

from serve.parsing.strict_json import loads

Schema = Mapping[str, Any]

_CONTAINERS = frozenset({"array", "object"})
_NO_NULL = 16  # a longer text is no spelling of null


class Value:
    """One value; `feed` and `finish` return JSON text to append to the arguments. All of the text is the value's.

    Subclasses say by what a format and a schema tell whether it streams.

    Args:
        schema: Of the parameter, if it is declared.
        root: The schema of all parameters, which `$ref` refers to.
    """

    _streams = False
    json_signs = ""
    """The signs with which the text may begin as JSON; none if it is the value as it is."""

    def __init__(self, schema: Schema | None, root: Schema) -> None:
        self._schema = schema
        self._root = root
        self._opened = False
        self._pieces: list[str] = []

    def feed(self, text: str) -> str:
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        return ""

    def finish(self) -> str:
        """Ends the value at its closing tag."""
        return self._encode("") + '"' if self._streams else self._whole("".join(self._pieces))

    def cut(self) -> str:
        """Ends the output inside the value; it stays an open string, which nobody takes for complete."""
        return self._encode("" if self._streams else "".join(self._pieces))

    def _whole(self, text: str) -> str:
        """Returns the JSON of a value that did not stream: what the schema makes of its text."""
        return json.dumps(coerce(text, self._schema or {}, self._root), ensure_ascii=False)

    def _encode(self, text: str) -> str:
        opening = "" if self._opened else '"'
        self._opened = True
        return opening + encode_basestring(text)[1:-1] if text else opening


class UntypedValue(Value):
    """A value of which only the schema tells the type. Unless it is verbatim, one newline after the opening tag and one
    before the closing tag are markup.
    """

    def __init__(self, schema: Schema | None, root: Schema, verbatim: bool = False) -> None:
        super().__init__(schema, root)
        types = types_of(schema, root)
        self._verbatim = verbatim
        self._streams = types == {"string"}
        self._nullable = types == {"string", "null"}
        if not types.isdisjoint(_CONTAINERS):
            self.json_signs = "{["
        self._first = True
        self._newlines = ""  # held back
        self._size = 0

    def feed(self, text: str) -> str:
        if not self._verbatim:
            text = self._without_markup(text)
        if self._streams:
            return self._encode(text)
        self._pieces.append(text)
        self._size += len(text)
        if self._nullable and self._size > _NO_NULL:
            self._streams = True
            return self._encode("".join(self._pieces))
        return ""

    def finish(self, *, closed: bool = True) -> str:
        """Ends the value at its closing tag; if that is missing, at the newline that would stand behind it."""
        rest = self._newlines[:-1] if closed else ""
        if self._streams:
            return self._encode(rest) + '"'
        return self._whole("".join([*self._pieces, rest]))

    def cut(self) -> str:
        newlines = self._newlines
        self._newlines = ""
        return self._encode(newlines if self._streams else "".join(self._pieces) + newlines)

    def _without_markup(self, text: str) -> str:
        """Takes the newline at the beginning away, and holds the last two back, which may be markup."""
        if self._first:
            self._first = False
            text = text.removeprefix("\n")
        if not self._newlines and not text.endswith("\n"):
            return text
        text = self._newlines + text
        size = max(len(text.rstrip("\n")), len(text) - 2)
        self._newlines = text[size:]
        return text[:size]


class DsmlValue(Value):
    """A value of DSML, whose attribute `string` tells whether it is text as it is, or JSON.

    The schema has the first word: a string where only strings are allowed streams as it is, and `7` becomes 7 where no
    string is allowed, whatever the attribute says. Where both are allowed, or no schema speaks, the attribute decides,
    if it is there.
    """

    def __init__(self, schema: Schema | None, root: Schema, is_string: bool | None) -> None:
        super().__init__(schema, root)
        self._is_string = is_string
        self._types = stated_types(schema, root)
        allowed = not self._types or "string" in self._types
        self._streams = allowed if is_string else is_string is None and self._types == {"string"}
        if not self._streams and not is_string:
            self.json_signs = '{["'
        elif not self._streams and not self._types.isdisjoint(_CONTAINERS):
            self.json_signs = "{["

    def _whole(self, text: str) -> str:
        if not self._is_string and self._is_json(text):
            return text.strip()
        return super()._whole(text) if self._types else json.dumps(text, ensure_ascii=False)

    def _is_json(self, text: str) -> bool:
        """Returns whether the text is the value as JSON writes it."""
        try:
            return is_of(loads(text), self._types)
        except ValueError:
            return False


class TypedValue(Value):
    """A value whose tag states its type: `string` for raw text, another JSON type for JSON; the schema decides if the
    tag states none.

    Attributes:
        fits: False once the value is known not to be of the type that the tag states.
    """

    def __init__(self, schema: Schema | None, root: Schema, kind: str | None) -> None:
        super().__init__(schema, root)
        self.fits = True
        self._kind = kind
        self._streams = kind == "string" or (kind is None and types_of(schema, root) == {"string"})

    def _whole(self, text: str) -> str:
        if self._kind is None:
            return super()._whole(text)
        try:
            value = loads(text)
        except ValueError:
            value = coerce(text, {"type": self._kind})  # a Python literal, or no value of this type
            self.fits = not isinstance(value, str)
            return json.dumps(value, ensure_ascii=False)
        self.fits = is_of(value, types_of({"type": self._kind}))
        return text.strip()  # as it was written: `1e2` and long numbers stay


class PaddedValue(TypedValue):
    """A value with one blank at each end that was put there when the output was decoded."""

    def __init__(self, schema: Schema | None, root: Schema, kind: str | None) -> None:
        super().__init__(schema, root, kind)
        self._begun = False
        self._blank = ""

    def feed(self, text: str) -> str:
        if not self._begun and text:
            self._begun = True
            text = text.removeprefix(" ")
        text = self._blank + text
        self._blank = " " if text.endswith(" ") else ""
        return super().feed(text[:-1] if self._blank else text)

    def cut(self) -> str:
        blank, self._blank = self._blank, ""
        return self._encode(blank if self._streams else "".join(self._pieces) + blank)


_ALIASES = {
    "str": "string", "text": "string", "varchar": "string", "char": "string", "enum": "string",
    "double": "number", "decimal": "number", "bool": "boolean", "binary": "boolean",
    "dict": "object", "map": "object", "list": "array", "arr": "array", "sequence": "array",
}  # fmt: skip
# Beginnings of the names that other languages give their numbers: int64, uint8, long, float32, numeric.
_NUMBERS = (("integer", ("int", "uint", "long", "short", "unsigned")), ("number", ("num", "float")))
_PYTHON_TYPES = {
    type(None): "null", bool: "boolean", int: "integer", float: "number", str: "string", dict: "object", list: "array",
}  # fmt: skip
_INTEGER = re.compile(r"\s*[+-]?[0-9]{1,4000}\s*")
_BOOLEANS = {"true": True, "1": True, "false": False, "0": False}
_DEPTH = 16  # of nested references and unions: a schema may refer to itself


class _NoFitError(Exception):
    """The text is no value of this type."""


def types_of(schema: Schema | None, root: Schema | None = None) -> frozenset[str]:
    """Returns all JSON types that the schema of a parameter allows; a string if it states none. `$ref` refers to the
    root; to the parameter's own schema if there is none.
    """
    return stated_types(schema, schema if root is None else root) or frozenset({"string"})


def stated_types(schema: Schema | None, root: Schema | None) -> frozenset[str]:
    """Returns the JSON types that a schema states, which may be none. `$ref` refers to the root.

    What stands in one schema holds at once, so that its types are those which all of it allows; the members of `anyOf`
    and `oneOf` are a choice.
    """
    return _stated(schema, root, _DEPTH, {}).names


class _Types(NamedTuple):
    """The types that a schema allows.

    Attributes:
        names: The types that it names.
        is_open: It allows others too.
    """

    names: frozenset[str]
    is_open: bool

    def either(self, other: _Types) -> _Types:
        return _Types(self.names | other.names, self.is_open or other.is_open)

    def both(self, other: _Types) -> _Types:
        """Returns what both allow; of a contradiction, what stands first."""
        if self.is_open and other.is_open:
            return self.either(other)
        if self.is_open or other.is_open:
            return other if self.is_open else self
        common = {name for name in self.names | other.names if _is_in(name, self.names) and _is_in(name, other.names)}
        return _Types(frozenset(common) or self.names or other.names, False)


_ANY = _Types(frozenset(), True)
_NONE = _Types(frozenset(), False)


def _stated(schema: Any, root: Schema | None, depth: int, followed: dict[str, _Types]) -> _Types:
    if not isinstance(schema, Mapping) or depth == 0:
        return _ANY
    types = _own_types(schema)
    for union in ("anyOf", "oneOf", "allOf"):
        members = schema.get(union)
        each = [_stated(one, root, depth - 1, followed) for one in members] if isinstance(members, list | tuple) else []
        if each:
            types = types.both(reduce(_Types.both if union == "allOf" else _Types.either, each))
    reference = schema.get("$ref")
    if isinstance(reference, str):
        if reference not in followed:
            followed[reference] = _NONE  # while it is followed: unions of references to themselves grow
            followed[reference] = _stated(_resolve(reference, root), root, depth - 1, followed)
        types = types.both(followed[reference])
    if schema.get("nullable") is True:  # OpenAPI's spelling
        types = types.either(_Types(frozenset({"null"} if types.names else {"string", "null"}), False))
    return types


def alternatives(schema: Any, root: Schema | None) -> Iterator[Schema]:
    """Yields a schema, and those that its unions and references lead to.

    Each reference is followed once: unions of references to themselves grow.
    """
    return _alternatives(schema, root, _DEPTH, set())


def _alternatives(schema: Any, root: Schema | None, depth: int, followed: set[str]) -> Iterator[Schema]:
    if not isinstance(schema, Mapping) or depth == 0:
        return
    yield schema
    for union in ("anyOf", "oneOf", "allOf"):
        members = schema.get(union)
        for member in members if isinstance(members, list | tuple) else ():
            yield from _alternatives(member, root, depth - 1, followed)
    reference = schema.get("$ref")
    if isinstance(reference, str) and reference not in followed:
        followed.add(reference)
        yield from _alternatives(_resolve(reference, root), root, depth - 1, followed)


def _own_types(schema: Schema) -> _Types:
    """Returns the types that a schema states itself, by `type` and by its values."""
    kind = schema.get("type")
    names = [kind] if isinstance(kind, str) else kind if isinstance(kind, list) else []
    plain = [name.strip().lower() for name in names if isinstance(name, str)]
    types = _named(_ALIASES.get(name) or _number_type(name) or name for name in plain)
    values = schema.get("enum")
    if isinstance(values, list):
        types = types.both(_named(_PYTHON_TYPES.get(type(value), "string") for value in values))
    if "const" in schema:
        types = types.both(_named([_PYTHON_TYPES.get(type(schema["const"]), "string")]))
    return types


def _named(names: Iterable[str]) -> _Types:
    found = frozenset(names)
    return _Types(found, not found)


def _number_type(name: str) -> str | None:
    return next((kind for kind, beginnings in _NUMBERS if name.startswith(beginnings)), None)


def _resolve(reference: str, root: Schema | None) -> Schema | None:
    """Returns what a reference into the document names; `#` is all of it."""
    path = unquote(reference.removeprefix("#").strip("/"))
    place: Any = root
    for step in path.split("/") if path else ():
        place = place.get(step.replace("~1", "/").replace("~0", "~")) if isinstance(place, Mapping) else None
    return place if isinstance(place, Mapping) else None


def _integer(value: str) -> int:
    if not _INTEGER.fullmatch(value):
        raise _NoFitError
    return int(value)


def _number(value: str) -> int | float:
    try:
        number = float(value)
    except ValueError:
        raise _NoFitError from None
    if not math.isfinite(number):
        raise _NoFitError
    if _INTEGER.fullmatch(value):
        return int(value)
    return int(number) if number.is_integer() else number


def _boolean(value: str) -> bool:
    try:
        return _BOOLEANS[value.strip().lower()]
    except KeyError:
        raise _NoFitError from None


def _json(value: str) -> Any:
    """Reads JSON, whose strings may hold the ends of lines as they are: models copy them from files."""
    try:
        parsed = json.loads(value, strict=False)
        json.dumps(parsed, allow_nan=False)
    except (ValueError, RecursionError):
        raise _NoFitError from None
    return parsed


def _container(kind: type) -> Callable[[str], Any]:
    def read(value: str) -> Any:
        try:
            parsed = _json(value)
        except _NoFitError:
            parsed = _literal(value)
        if not isinstance(parsed, kind):
            raise _NoFitError
        return parsed

    return read


def _literal(value: str) -> Any:
    """Reads a Python literal, which templates that print a mapping with `str()` teach the model to write."""
    try:
        parsed = ast.literal_eval(value.strip())
        json.dumps(parsed, allow_nan=False)
    except (ValueError, SyntaxError, TypeError, RecursionError, MemoryError):
        raise _NoFitError from None
    return parsed


# In this order: the narrower type first.
_READERS: dict[str, Callable[[str], Any]] = {
    "integer": _integer, "number": _number, "boolean": _boolean, "object": _container(dict), "array": _container(list),
}  # fmt: skip


def coerce(value: str, schema: Schema, root: Schema | None = None) -> Any:
    """Returns the value that the schema of a parameter asks for, or the text itself if it does not fit; see `types_of`
    for the root.

    Where a string is allowed too, only what JSON writes exactly so is a number or a boolean: `007`, `+4917`, `1_000`
    and `1.10` may be a code, a telephone number, a name or a version, and as numbers they would be others.
    """
    types = types_of(schema, root)
    if "null" in types and (value.lower() == "null" or (value == "None" and _none_is_null(types))):
        return None
    for name, read in _READERS.items():
        if name in types:
            try:
                read_value = read(value)
            except _NoFitError:
                continue
            if name in _CONTAINERS or "string" not in types or json.dumps(read_value) == value:
                return read_value
    if "string" in types:
        return value
    try:
        return _json(value)
    except _NoFitError:
        return value


def _none_is_null(types: frozenset[str]) -> bool:
    """Returns whether `None` is null, as Qwen's template prints it; where a string is allowed, it may be one."""
    return "string" not in types and len(types) > 1


def is_of(value: object, stated: frozenset[str]) -> bool:
    """Returns whether a value of JSON has one of the types that a schema states, which may be none."""
    return not stated or _is_in(_PYTHON_TYPES[type(value)], stated)


def _is_in(kind: str, types: frozenset[str]) -> bool:
    """Returns whether a type is one of these, or part of one: an integer is a number."""
    return kind in types or (kind == "integer" and "number" in types)
