"""The tools that a request declares, and which of them a call means, however a model or an engine's parser spells its
name or id. Without a name the arguments tell: `arguments.py`.
"""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from serve.parsing.values import Schema

_NAME = re.compile(r"[^\s<>{}=\"']+")
_PREFIX = re.compile(r"functions[.:_/\- ]?|function[.:]", re.IGNORECASE)
_COUNTER = re.compile(r"(?P<name>.+):\d+", re.DOTALL)
_SEPARATORS = " .:_#/-"
_DIGITS = "0123456789"
_MOST_DIGITS = 6  # of a counter: no conversation has more calls
_MOST_CHARS = 256  # of a spelling; a longer one is no name
# An id of OpenAI's kind, which names nothing, although it looks like a tool `call` and a counter.
_OPAQUE = re.compile(r"call[_-]?[0-9A-Za-z]*")


class Tools:
    """Names and parameter schemas of the declared tools.

    Args:
        declared: OpenAI's tool objects, with or without the `{"type": "function", "function": …}` around them.
    """

    def __init__(self, declared: Iterable[Mapping[str, Any]] = ()) -> None:
        functions = [tool.get("function") or tool for tool in declared]
        self._schemas: dict[str, Schema] = {
            function["name"]: _object(function.get("parameters")) for function in functions if function.get("name")
        }

    def __bool__(self) -> bool:
        return bool(self._schemas)

    def __iter__(self) -> Iterator[str]:
        return iter(self._schemas)

    def __contains__(self, name: str) -> bool:
        return name in self._schemas

    @cached_property
    def names(self) -> Names:
        """Reads names that are spelt in another way."""
        return Names(self._schemas)

    def may_be(self, name: str) -> bool:
        """Returns whether a text may name a tool: it looks like a name, or is declared."""
        return _NAME.fullmatch(name) is not None or name in self._schemas

    def may_have(self, name: str, key: str) -> bool:
        """Returns whether a text may name a parameter of a tool: it looks like a name, or is declared."""
        return _NAME.fullmatch(key) is not None or self.parameter(name, key) is not None

    def schema(self, name: str) -> Schema:
        return self._schemas.get(name, {})

    def properties(self, name: str) -> Mapping[str, Schema] | None:
        """Returns the parameters of a tool by name; None if any is allowed."""
        schema = self.schema(name)
        properties = schema.get("properties")
        if not isinstance(properties, Mapping) or not properties or schema.get("additionalProperties"):
            return None
        return properties

    def parameter(self, name: str, key: str) -> Schema | None:
        properties = self.schema(name).get("properties")
        schema = properties.get(key) if isinstance(properties, Mapping) else None
        return schema if isinstance(schema, Mapping) else None

    def required(self, name: str) -> frozenset[str]:
        required = self.schema(name).get("required")
        return frozenset(key for key in required if isinstance(key, str)) if isinstance(required, list) else frozenset()


def _object(parameters: Any) -> Schema:
    """Returns a tool's parameters; a schema that is no object says nothing about them."""
    return parameters if isinstance(parameters, Mapping) else {}


class Names:
    """The names of the declared tools.

    A model of the Kimi family begins a call with `functions.NAME:N`; it drops, doubles and changes the parts around
    the name, and clients that sanitise ids teach it to. The declared names tell which part is the name.
    """

    def __init__(self, declared: Iterable[str]) -> None:
        self._declared = dict.fromkeys(declared)
        self._by_key: dict[str, list[str]] | None = None

    def meant_by(self, spelling: str, *, is_id: bool = True) -> list[str]:
        """Returns the tools that a spelling may mean: one if it is clear, none if it names no tool.

        Case and punctuation do not count. If it may be a call's whole id, its counter may be joined to the name by
        anything; otherwise only a spelling with a `functions` in front is taken for one.
        """
        spelling = spelling.strip()
        if not spelling or len(spelling) > _MOST_CHARS:
            return []
        for name in _canonical(spelling):
            if name in self._declared:
                return [name]
        if _OPAQUE.fullmatch(spelling):
            return []
        forms = [*_forms(spelling)] if is_id or _PREFIX.match(spelling) else [spelling]
        return list(dict.fromkeys(form for form in forms if form in self._declared)) or self._loosely(forms)

    def _loosely(self, forms: Iterable[str]) -> list[str]:
        """Returns the names that differ from a form in nothing but punctuation and case."""
        if self._by_key is None:
            self._by_key = {}
            for name in self._declared:
                self._by_key.setdefault(plain(name), []).append(name)
        found = (name for form in forms if (key := plain(form)) for name in self._by_key.get(key, ()))
        return list(dict.fromkeys(found))


def _canonical(spelling: str) -> Iterator[str]:
    """Yields the names that a spelling holds as templates write it, the surest reading first."""
    counted = _COUNTER.fullmatch(spelling)
    if counted:
        yield counted["name"].removeprefix("functions.")
        yield counted["name"]
    yield spelling
    yield spelling.removeprefix("functions.")


def _forms(spelling: str) -> Iterator[str]:
    """Yields what is left of a spelling without its prefix, without its counter, and without both.

    Signs beside either may be the name's own: `functions_a_0` is `a` or `_a`, or `a_`.
    """
    prefix = _PREFIX.match(spelling)
    starts = (0, prefix.end(), prefix.end() - (spelling[prefix.end() - 1] in _SEPARATORS)) if prefix else (0,)
    for body in dict.fromkeys(spelling[start:] for start in starts):
        yield from _with_fewer_signs(body)
        bare = body.rstrip(_SEPARATORS)
        digits = len(bare) - len(bare.rstrip(_DIGITS))
        if digits <= _MOST_DIGITS:
            for count in range(1, digits + 1):
                yield from _with_fewer_signs(bare[:-count])


def _with_fewer_signs(text: str) -> Iterator[str]:
    """Yields a text without the signs at its end, and with one more of them each time."""
    bare = text.rstrip(_SEPARATORS)
    return (text[:end] for end in range(len(bare), len(text) + 1))


def plain(name: str) -> str:
    """Returns a name without its punctuation and case; as it is if it has nothing else."""
    return "".join(filter(str.isalnum, name)).casefold() or name
