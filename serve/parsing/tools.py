"""The tools that a request declares, as the parsers need them."""

from __future__ import annotations

import re
from collections.abc import Iterable, Iterator, Mapping
from functools import cached_property
from typing import Any

from serve.parsing.names import Names

Schema = Mapping[str, Any]
_NAME = re.compile(r"[^\s<>{}=\"']+")


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
