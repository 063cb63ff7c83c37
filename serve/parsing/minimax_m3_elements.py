"""What JSON the tool's schema makes of the nested elements in the arguments of MiniMax-M3."""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any

from serve.parsing.coercion import alternatives, coerce, stated_types
from serve.parsing.tools import Schema

ITEM = "item"  # the element around each member of a list
TEXT = "$text"  # the key of text that stands beside elements


@dataclass(slots=True)
class Element:
    """One element.

    Attributes:
        tag: What its closing tag must name.
        key: The name of its value.
        schema: Of its value, if there is one.
        text: The pieces of its text.
        children: The elements in it.
        settled: Number of pieces of text in front of its last child.
    """

    tag: str
    key: str
    schema: Schema | None
    text: list[str] = field(default_factory=list)
    children: list[Element] = field(default_factory=list)
    settled: int = 0

    def add(self, child: Element) -> None:
        self.children.append(child)
        self.settled = len(self.text)

    def take_text(self) -> str:
        """Takes away the text since the last child."""
        taken = "".join(self.text[self.settled :])
        del self.text[self.settled :]
        return taken

    def is_mixed(self) -> bool:
        """Returns whether text stands beside elements."""
        return bool(self.children) and any(not piece.isspace() for piece in self.text if piece)


def property_schema(schema: Any, key: str, root: Schema | None) -> Schema | None:
    """Returns the schema of an object's member: its own, or that of all that have none."""
    for each in alternatives(schema, root):
        properties = each.get("properties")
        if isinstance(properties, Mapping) and isinstance(properties.get(key), Mapping):
            return properties[key]  # type: ignore[no-any-return]
    others = (each.get("additionalProperties") for each in alternatives(schema, root))
    return next((other for other in others if isinstance(other, Mapping)), None)


def child_schema(schema: Any, key: str, root: Schema | None) -> Schema | None:
    """Returns the schema of what stands in an element: of a member of an object, or of a list."""
    own = property_schema(schema, key, root)
    return _items(schema, root) if own is None else own


def takes_lists(schema: Schema | None, root: Schema | None) -> bool:
    """Returns whether a value may be a list, as far as a schema says."""
    return not (types := stated_types(schema, root)) or "array" in types


def value_of(element: Element, root: Schema | None) -> Any:
    """Returns the JSON value of an element. `$ref` refers to the root."""
    schema = element.schema
    types = _types(schema, root)
    if not element.children:
        text = "".join(element.text)
        if not text.strip() and "string" not in types:  # how the template writes both of them when they are empty
            if "array" in types:
                return []
            if "object" in types:
                return {}
        return coerce(text, schema, root) if types and schema is not None else text
    if _is_list(element, types):
        return [value_of(child, root) for child in element.children]
    members = list(_members(element.children, root))
    if element.is_mixed():
        key = TEXT
        while any(key == other for other, _ in members):
            key = f"${key}"
        members.append((key, "".join(element.text)))
    return dict(members)


def values_of(elements: Sequence[Element], root: Schema | None) -> Any:
    """Returns the value of an element, or of several with the same name, which are a list. `$ref` refers to the
    root.
    """
    if len(elements) == 1:
        return value_of(elements[0], root)
    if "array" not in _types(elements[0].schema, root):
        return [value_of(each, root) for each in elements]
    members: list[Any] = []
    for each in elements:
        if not each.children:
            each.schema = _items(each.schema, root)
        value = value_of(each, root)
        members += value if each.children and isinstance(value, list) else [value]
    return members


def _members(children: Iterable[Element], root: Schema | None) -> Iterator[tuple[str, Any]]:
    by_key: dict[str, list[Element]] = {}
    for child in children:
        by_key.setdefault(child.key, []).append(child)
    for key, same in by_key.items():
        yield key, values_of(same, root)


def _is_list(element: Element, types: frozenset[str]) -> bool:
    """Returns whether what stands in an element is a list: as its schema says, or else as the template writes lists."""
    if ("array" in types) != ("object" in types):
        return "array" in types
    return all(child.key == ITEM for child in element.children)


def _types(schema: Schema | None, root: Schema | None) -> frozenset[str]:
    """Returns the types that a schema states, or that its words imply."""
    types = stated_types(schema, root)
    if types:
        return types
    for each in alternatives(schema, root):
        if "items" in each:
            return frozenset({"array"})
        if "properties" in each or "additionalProperties" in each:
            return frozenset({"object"})
    return types


def _items(schema: Any, root: Schema | None) -> Schema | None:
    found = (each.get("items") for each in alternatives(schema, root))
    return next((items for items in found if isinstance(items, Mapping)), None)
