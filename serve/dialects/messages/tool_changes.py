"""Tools that a conversation adds and removes on its way, in system messages."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})


def tools_in_effect(body: Mapping[str, Any], declared: list[Any]) -> list[Any]:
    """Returns the tools at the end of a conversation; what is no tool stays as it is, for whoever reads the list.

    Args:
        body: The request.
        declared: Its `tools`. All of them are offered, those too whose loading is deferred: nothing here loads them.
    """
    removed: set[str] = set()
    added: list[Any] = []
    for change in _changes(body.get("messages")):
        tool = change.get("tool")
        if not isinstance(tool, dict):
            continue
        definition = tool.get("definition")
        named = definition if isinstance(definition, dict) else tool
        name = str(named.get("name"))
        if change["type"] == "tool_removal":
            removed.add(name)
            continue
        removed.discard(name)
        if isinstance(definition, dict):
            added = [other for other in added if _name_of(other) != name]
            added.append(definition)
    redefined = removed | set(map(_name_of, added))
    return [tool for tool in declared if _name_of(tool) not in redefined] + [
        tool for tool in added if _name_of(tool) not in removed
    ]


def _changes(messages: Any) -> Iterator[Mapping[str, Any]]:
    for message in messages if isinstance(messages, list) else ():
        content = message.get("content") if isinstance(message, dict) else None
        for block in _blocks(content):
            if block.get("type") in TOOL_CHANGES and message.get("role") == "system":
                yield block
            elif block.get("type") == "compaction":
                yield from (
                    change for change in _blocks(block.get("tool_changes")) if change.get("type") in TOOL_CHANGES
                )


def _blocks(content: Any) -> Iterable[Mapping[str, Any]]:
    return [block for block in content if isinstance(block, dict)] if isinstance(content, list) else ()


def _name_of(tool: Any) -> str | None:
    name = tool.get("name") if isinstance(tool, dict) else None
    return name if isinstance(name, str) else None
