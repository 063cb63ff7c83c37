"""The mistakes in a configuration, in words that say what to do."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import fields, is_dataclass
from datetime import date
from difflib import get_close_matches
from types import UnionType
from typing import Annotated, Any, Union, get_args, get_origin, get_type_hints

from pydantic import BaseModel, ValidationError

_UNKNOWN_KEY = frozenset({"extra_forbidden", "unexpected_keyword_argument"})
_TEXT_WANTED = frozenset({"string_type", "literal_error"})
_MAPPING_WANTED = frozenset({"dict_type", "model_type", "model_attributes_type", "dataclass_type"})


def problems_of(error: ValidationError, schema: type[BaseModel]) -> Iterator[str]:
    for problem in error.errors():
        place = problem["loc"]
        message = problem["msg"].removeprefix("Value error, ") + _quotes(problem["type"], problem["input"])
        if problem["type"] in _UNKNOWN_KEY:
            message = _unknown(str(place[-1]), _keys_at(schema, place[:-1]))
        elif problem["type"] in _MAPPING_WANTED:
            empty = problem["input"] is None
            message = "it is empty; indent what belongs to it" if empty else "it should hold keys with values"
        elif problem["type"] == "too_short" and problem["ctx"]["field_type"] == "Dictionary":
            message = "at least one entry is needed"
        yield f"{'.'.join(map(str, place)) or '(root)'}: {message}"


def first_problem(error: ValidationError, whole: str) -> str:
    """Returns the first problem with its place, or with `whole` if it has none; it repeats no value."""
    first = error.errors()[0]
    place = ".".join(map(str, first["loc"])) or whole
    return f"{place}: {first['msg']}{_quotes(first['type'], first['input'])}"


def _quotes(problem: str, value: Any) -> str:
    if problem not in _TEXT_WANTED or not isinstance(value, (bool, int, float, date)):
        return ""
    read_as = "true or false" if isinstance(value, bool) else "a date" if isinstance(value, date) else "a number"
    return f"; put it in quotes, or it is read as {read_as}"


def _unknown(key: str, known: Sequence[str]) -> str:
    if close := get_close_matches(key, known, n=1):
        return f"unknown key; did you mean `{close[0]}`?"
    return f"unknown key; known keys: {', '.join(known)}" if known else "unknown key"


def _keys_at(kind: Any, place: Sequence[str | int]) -> list[str]:
    """Returns the keys that may stand at a place within values of a type; none if they may be any."""
    origin, arguments = get_origin(kind), get_args(kind)
    if origin is Annotated:
        return _keys_at(arguments[0], place)
    if origin in (Union, UnionType):
        return next(filter(None, (_keys_at(each, place) for each in arguments)), [])
    members = _members_of(kind)
    if not place:
        return list(members)
    if members:
        return _keys_at(members.get(str(place[0])), place[1:])
    if not arguments:
        return []
    return _keys_at(arguments[-1] if issubclass(origin, Mapping) else arguments[0], place[1:])


def _members_of(kind: Any) -> Mapping[str, Any]:
    if isinstance(kind, type) and issubclass(kind, BaseModel):
        return {name: field.annotation for name, field in kind.model_fields.items()}
    if not is_dataclass(kind):
        return {}
    types = get_type_hints(kind)
    return {field.name: types[field.name] for field in fields(kind)}
