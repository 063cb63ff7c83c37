"""Tools and `tool_choice` of a Messages request, as chat has them."""

from collections.abc import Iterable, Iterator, Mapping
from typing import Any

from serve.dialects.body import wrong
from serve.errors import InvalidRequestError, encode_json

# Blocks of system messages, by which a conversation adds and removes tools on its way.
TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
_PLAIN_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Returns the members of the chat body that come of a request's tools.

    Anthropic's own server tools run nowhere here. They are left out if a client's own tools remain; alone or forced
    they are an error, because an answer without them would be made up. `dropped` gets the names of those left out.

    Raises:
        InvalidRequestError: The tools, or the choice among them, can't be served.
    """
    given = body.get("tools")
    if given is not None and not isinstance(given, list):
        raise wrong("tools", "must be a list")
    tools: list[dict[str, Any]] = []
    hosted: list[tuple[str | None, str]] = []  # the tool's name, and the error
    for position, tool in enumerate(tools_in_effect(body, given or [])):
        where = f"tools.{position}"
        if not isinstance(tool, dict):
            raise wrong(where, "must be an object")
        kind = tool.get("type")
        if "input_schema" in tool or kind in (None, "custom"):
            tools.append(_chat_tool(tool, where))
            continue
        hosted.append((_name_of(tool), f"{where}: {_unknown_tag(kind)}"))
        dropped.append(f"tools.{kind}")
    choice = body.get("tool_choice")
    demanded = _name_of(choice)
    refused = [error for name, error in hosted if not tools or (name is not None and name == demanded)]
    if refused:
        raise InvalidRequestError(refused[0], param="tools")
    members: dict[str, Any] = {"tools": tools} if tools else {}
    if choice is not None:
        members |= _chat_choice(choice, bool(tools))
    return members


def _unknown_tag(kind: object) -> str:
    return f"Input tag '{kind}' found using 'type' does not match any of the expected tags: 'custom'"


def _chat_tool(tool: dict[str, Any], where: str) -> dict[str, Any]:
    name, schema = tool.get("name"), tool.get("input_schema")
    if not isinstance(name, str) or not name:
        raise wrong(f"{where}.name", "Field required")
    if not isinstance(schema, dict):
        raise wrong(f"{where}.input_schema", "Field required" if schema is None else "must be an object")
    function: dict[str, Any] = {"name": name, "parameters": schema}
    said = [description] if isinstance(description := tool.get("description"), str) else []
    if isinstance(examples := tool.get("input_examples"), list) and examples:
        said.append("\n".join(["Examples of its input:", *[encode_json(example).decode() for example in examples]]))
    if said:
        function["description"] = "\n\n".join(said)
    if isinstance(strict := tool.get("strict"), bool):
        function["strict"] = strict
    return {"type": "function", "function": function}


def _chat_choice(choice: Any, any_tools: bool) -> dict[str, Any]:
    kind = choice.get("type") if isinstance(choice, dict) else None
    members: dict[str, Any] = {}
    if isinstance(kind, str) and kind in _PLAIN_CHOICES:
        if any_tools or kind == "any":
            members["tool_choice"] = _PLAIN_CHOICES[kind]
    elif kind == "tool" and isinstance(choice.get("name"), str):
        members["tool_choice"] = {"type": "function", "function": {"name": choice["name"]}}
    else:
        raise wrong("tool_choice", "must be an object whose `type` is auto, any, none, or tool with a `name`")
    if any_tools and choice.get("disable_parallel_tool_use") is True:
        members["parallel_tool_calls"] = False
    return members


def tools_in_effect(body: Mapping[str, Any], declared: list[Any]) -> list[Any]:
    """Returns the tools at the end of a conversation; what is no tool stays as it is, for whoever reads the list.

    All that are `declared` in the request are offered, those too whose loading is deferred: nothing here loads them.
    """
    removed: set[str | None] = set()
    added: list[Any] = []
    for change in _changes(body.get("messages")):
        tool = change.get("tool")
        if not isinstance(tool, dict):
            continue
        definition = tool.get("definition")
        named = definition if isinstance(definition, dict) else tool
        name = _name_of(named)
        if change["type"] == "tool_removal":
            removed.add(name)
            continue
        removed.discard(name)
        if isinstance(definition, dict):
            added = [other for other in added if name is None or _name_of(other) != name]
            added.append(definition)
    redefined = removed | set(map(_name_of, added))
    for names in (removed, redefined):
        names.discard(None)  # a tool without a name is like no other
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
