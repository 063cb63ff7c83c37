"""Tools and `tool_choice` of a Messages request, as chat has them."""

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import msgspec

from serve.dialects.answer import Call, mapping
from serve.dialects.body import wrong
from serve.errors import InvalidRequestError, encode_json

# Blocks of system messages, by which a conversation adds and removes tools on its way.
TOOL_CHANGES = frozenset({"tool_addition", "tool_removal"})
_TEXT: dict[str, Any] = {"type": "string"}
_NUMBER = {"type": "integer"}
_NUMBERS = {"type": "array", "items": _NUMBER}
_PLACE = {**_NUMBERS, "description": "[x, y]"}
_EDITS = ["view", "create", "str_replace", "insert"]
_RANGE = {**_NUMBERS, "description": "First and last line to view, from 1; -1 is the end."}
_EDITED = {
    "path": _TEXT,
    "view_range": _RANGE,
    "file_text": {**_TEXT, "description": "For create: the whole file."},
    "old_str": {**_TEXT, "description": "For str_replace: text that is there once."},
    "new_str": {**_TEXT, "description": "For str_replace: what takes its place."},
    "insert_line": {**_NUMBER, "description": "For insert: the line behind which to insert; 0 is the beginning."},
    "insert_text": {**_TEXT, "description": "For insert: what is inserted."},
}
_ACTIONS = [
    "key", "type", "mouse_move", "left_click", "left_click_drag", "right_click", "middle_click", "double_click",
    "screenshot", "cursor_position",
]  # fmt: skip
COMPUTER = "computer"
_TOOLSET = f"{COMPUTER}_toolset"  # whose calls are named by their action
_LATER_ACTIONS = ["left_mouse_down", "left_mouse_up", "scroll", "hold_key", "wait", "triple_click"]
_PLAIN_CHOICES = {"auto": "auto", "any": "required", "none": "none"}


def chat_tools(body: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Returns the members of the chat body that come of a request's tools.

    Anthropic's own server tools run nowhere here. They are left out if tools that the client runs remain; alone or
    forced they are an error, because an answer without them would be made up. `dropped` gets the names of those left
    out.

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
        if kind not in (None, "custom"):
            tool = {**_run_by_client(str(kind), tool), **tool}
        if "input_schema" in tool or kind in (None, "custom"):
            tools.append(_chat_tool(tool, where))
            continue
        why = f"{where}: no tool of type {kind} is run here. Offer one with an `input_schema`, which you run yourself."
        hosted.append((_name_of(tool), why))
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


def _run_by_client(kind: str, tool: Mapping[str, Any]) -> dict[str, Any]:
    """Returns what clients don't say of those of Anthropic's tools that they run, because its models know it: what the
    tool does, and its arguments. Nothing for any other tool.
    """
    family, _, version = kind.rpartition("_")
    if family == "bash":
        command = {**_TEXT, "description": "Needed unless `restart` is true."}
        said = "Runs a command in a bash session that keeps its state."
        return _described(said, [], command=command, restart={"type": "boolean"})
    if family == "text_editor":
        commands, edited = _EDITS, _EDITED
        if version < "20250429":  # clients of the older ones take the text to insert from `new_str`, and can undo
            commands = [*_EDITS, "undo_edit"]
            edited = {name: schema for name, schema in _EDITED.items() if name != "insert_text"}
            edited["new_str"] = {**_TEXT, "description": "For str_replace and insert: the new text."}
        command = {**_TEXT, "enum": commands}
        return _described("Views, creates and edits text files.", ["command", "path"], command=command, **edited)
    if family == "memory":
        command = {**_TEXT, "enum": [*_EDITS, "delete", "rename"]}
        moved = {"old_path": {**_TEXT, "description": "For rename, beside new_path."}, "new_path": _TEXT}
        said = "Reads and writes files below /memories, which last from one conversation to the next."
        return _described(said, ["command"], command=command, **_EDITED, **moved)
    if family == COMPUTER:
        size = f"{tool.get('display_width_px')} by {tool.get('display_height_px')} pixels"
        return _computer(version, f" with a screen of {size}", zooms=tool.get("enable_zoom") is True)
    if family == _TOOLSET:
        configs = mapping(tool.get("configs"))
        off = [name for name, config in configs.items() if mapping(config).get("enabled") is False]
        return {"name": COMPUTER, **_computer(version, "", zooms=True, without=off)}
    return {}


def offers_toolset(tools: Iterable[Any]) -> bool:
    """Returns whether a toolset for a computer is among a request's tools."""
    return any(str(mapping(tool).get("type")).startswith(_TOOLSET) for tool in tools)


def toolset_call(call: Call) -> Call:
    """Returns a call as the client has its tools, if those for a computer are a toolset."""
    said = msgspec.json.decode(call.arguments)
    if call.name != COMPUTER or not isinstance(action := said.pop("action", None), str):
        return call
    return call._replace(name=action, arguments=encode_json(said).decode(), toolset=COMPUTER)


def _computer(version: str, screen: str, *, zooms: bool, without: Sequence[str] = ()) -> dict[str, Any]:
    actions, members = [*_ACTIONS], {"coordinate": _PLACE, "text": {**_TEXT, "description": "To type, or the keys."}}
    if version >= "20250124":
        actions += _LATER_ACTIONS
        members |= {
            "start_coordinate": {**_PLACE, "description": "[x, y] where a drag begins."},
            "scroll_direction": {**_TEXT, "enum": ["up", "down", "left", "right"]},
            "scroll_amount": _NUMBER,
            "duration": {"type": "number", "description": "Seconds."},
        }
    if zooms:
        actions.append("zoom")
        members["region"] = {**_NUMBERS, "description": "[x0, y0, x1, y1] to zoom into."}
    said = f"Uses mouse and keyboard of a computer{screen}, and takes screenshots of it."
    action = {**_TEXT, "enum": [name for name in actions if name not in without]}
    return _described(said, ["action"], action=action, **members)


def _described(description: str, required: list[str], **properties: Any) -> dict[str, Any]:
    schema = {"type": "object", "properties": properties, "required": required}
    return {"description": description, "input_schema": schema}


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
