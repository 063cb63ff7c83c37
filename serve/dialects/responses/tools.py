"""Tools in all shapes of the Responses API as functions of a chat completion, and the way back by name.

An engine knows functions only. A custom tool becomes a function with one string, a namespace's tools become functions
with the namespace in their name, and those of OpenAI's own tools that clients run become functions too. A hosted tool,
which only OpenAI can run, is left out.
"""

import json
import re
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from hashlib import blake2b
from typing import Any, NamedTuple

from serve.errors import InvalidRequestError

TOOL_SEARCH = "tool_search"
COMPUTER, COMPUTER_PREVIEW = "computer", "computer_use_preview"
CUSTOM_INPUT = "input"  # the one parameter of a custom tool's function
_BEFORE_TEXT = re.compile(rf'\s*{{\s*"{CUSTOM_INPUT}"\s*:\s*"')
_HEX = "[0-9a-fA-F]"
# Whole characters, those of two escapes too; repeated, not `{4}`, for Python before 3.11.5 (see `_ESCAPES` in
# `json_prefix`).
_TEXT = re.compile(
    rf'(?:[^"\\]|\\["\\/bfnrt]|\\u(?![dD][89a-fA-F]){_HEX * 4}'
    rf"|\\u[dD][89abAB]{_HEX * 2}\\u[dD][c-fC-F]{_HEX * 2})*+"
)
_NAME_LIMIT = 64  # characters, OpenAI's own
_DIGEST = 12
_PLAIN_CHOICES = ("auto", "none", "required")  # some clients send them as objects
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The tool's whole input, as plain text."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


class BuiltIn(NamedTuple):
    """A tool of OpenAI's that clients run: the function that stands for it, and the item that a call of it is.

    Attributes:
        parameters: Of the function; clients don't give them, as OpenAI's models know them.
        item: The type of a call's item.
        prefix: Begins the ids of its items.
        member: Of the item, with the arguments; empty if they are members of the item themselves.
        beside: Further members of the item.
        implied: What the arguments hold if the model does not say otherwise.
    """

    description: str
    parameters: dict[str, Any]
    item: str
    prefix: str
    member: str
    beside: Mapping[str, Any] = {}
    implied: Mapping[str, Any] = {}


_STRINGS = {"type": "array", "items": {"type": "string"}}
_TIMEOUT = {"type": "integer", "description": "Milliseconds after which the command is ended."}
_INTEGER = {"type": "integer"}
_MEMBERS_OF_ACTIONS: dict[str, Any] = {
    **dict.fromkeys(("x", "y", "scroll_x", "scroll_y"), _INTEGER),
    "button": {"type": "string", "enum": ["left", "right", "wheel", "back", "forward"]},
    "path": {
        "type": "array",
        "items": {"type": "object", "properties": {"x": _INTEGER, "y": _INTEGER}, "required": ["x", "y"]},
    },
    "keys": {**_STRINGS, "description": "To press, or to hold meanwhile."},
    "text": {"type": "string"},
}
_ACTIONS = {
    "click": ["x", "y", "button"],
    "double_click": ["x", "y"],
    "drag": ["path"],
    "keypress": ["keys"],
    "move": ["x", "y"],
    "screenshot": [],
    "scroll": ["x", "y", "scroll_x", "scroll_y"],
    "type": ["text"],
    "wait": [],
}
_ACTION: dict[str, Any] = {
    "anyOf": [
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "const": name},
                **{member: _MEMBERS_OF_ACTIONS[member] for member in (*needed, "keys")},
            },
            "required": ["type", *needed],
        }
        for name, needed in _ACTIONS.items()
    ]
}
_USES_COMPUTER = "Uses mouse and keyboard of a computer; its result is a screenshot."
BUILT_IN = {
    TOOL_SEARCH: BuiltIn("", _NO_PARAMETERS, "tool_search_call", "tsc", "arguments", beside={"execution": "client"}),
    "shell": BuiltIn(
        "Runs shell commands on the user's machine.",
        {
            "type": "object",
            "properties": {
                "commands": {**_STRINGS, "description": "Commands for a shell, each run by itself."},
                "timeout_ms": _TIMEOUT,
                "max_output_length": {"type": "integer", "description": "Characters of output to keep."},
            },
            "required": ["commands"],
        },
        "shell_call",
        "sh",
        "action",
        implied={"timeout_ms": None, "max_output_length": None},
    ),
    "local_shell": BuiltIn(
        "Runs a program on the user's machine.",
        {
            "type": "object",
            "properties": {
                "command": {**_STRINGS, "description": 'The program and its arguments, such as ["bash", "-lc", "ls"].'},
                "env": {"type": "object", "additionalProperties": {"type": "string"}},
                "timeout_ms": _TIMEOUT,
                "working_directory": {"type": "string"},
            },
            "required": ["command"],
        },
        "local_shell_call",
        "lsh",
        "action",
        implied={"type": "exec", "env": {}},
    ),
    "apply_patch": BuiltIn(
        "Creates, updates or deletes a file.",
        {
            "type": "object",
            "properties": {
                "type": {"type": "string", "enum": ["create_file", "update_file", "delete_file"]},
                "path": {"type": "string"},
                "diff": {
                    "type": "string",
                    "description": "Of a new file, all lines, each behind a `+`. Of an update, hunks: a line `@@`, "
                    "which may name a line above as in `@@ def f():`, then lines behind a space where they stay, `-` "
                    "where they go and `+` where they are new. No line numbers. None to delete a file.",
                },
            },
            "required": ["type", "path"],
            "if": {"properties": {"type": {"const": "delete_file"}}},
            "else": {"required": ["diff"]},
        },
        "apply_patch_call",
        "apc",
        "operation",
    ),
    **{
        name: BuiltIn(
            _USES_COMPUTER,
            {"type": "object", "properties": {member: schema}, "required": [member]},
            "computer_call",
            "cu",
            "",
            beside={"pending_safety_checks": []},
        )
        for name, member, schema in (
            (COMPUTER, "actions", {"type": "array", "items": _ACTION, "minItems": 1}),
            (COMPUTER_PREVIEW, "action", _ACTION),
        )
    },
}


def custom_arguments(text: Any) -> str:
    """Returns the arguments of the function that stands for a custom tool, given the tool's input."""
    return json.dumps({CUSTOM_INPUT: str(text or "")}, ensure_ascii=False)


class CustomText:
    """Reads the text that a custom tool is to get out of arguments that come piece by piece."""

    def __init__(self) -> None:
        self._waiting = ""  # what is not read yet
        self._begun = False

    def feed(self, arguments: str) -> str:
        """Returns the text in more arguments."""
        self._waiting += arguments
        if not self._begun:
            found = _BEFORE_TEXT.match(self._waiting)
            if found is None:
                return ""
            self._begun = True
            self._waiting = self._waiting[found.end() :]
        end = _TEXT.match(self._waiting).end()  # type: ignore[union-attr]
        text, self._waiting = self._waiting[:end], self._waiting[end:]
        return str(json.loads(f'"{text}"'))


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as the client named it.

    Attributes:
        kind: `function`, `custom` for a tool that takes plain text, or the name of one that is `BUILT_IN`.
        name: Within its namespace.
        namespace: None for a tool at the top level.
    """

    kind: str
    name: str
    namespace: str | None = None


class ToolTable:
    """The tools of one request, by either side's name.

    Attributes:
        functions: The tools of the chat completion, in the order in which the client gave them.
        dropped: The types of tools that were left out.
    """

    def __init__(self) -> None:
        self.functions: list[dict[str, Any]] = []
        self.dropped: list[str] = []
        self._tools: dict[str, ClientTool] = {}  # by the function's name
        self._names: dict[tuple[str | None, str], str] = {}  # of functions, by namespace and name
        self._inner: dict[str, list[str]] = {}  # names of functions in any namespace, by the tool's name

    def add(self, tool: ClientTool, function: Mapping[str, Any]) -> None:
        """Adds a tool under a name that no other has; the first of two with one name and namespace stays."""
        if (tool.namespace, tool.name) in self._names:
            self.dropped.append(f"{tool.name} (given twice)")
            return
        name = tool.name if tool.namespace is None else _flat_name(tool.namespace, tool.name)
        if name in self._tools:
            name = _digest_name(f"{tool.namespace}", tool.name)
        self._tools[name] = tool
        self._names[tool.namespace, tool.name] = name
        self._inner.setdefault(tool.name, []).append(name)
        members = {key: value for key, value in function.items() if value is not None and value != ""}
        self.functions.append({"type": "function", "function": {"name": name, **members}})

    def client_tool(self, function: str) -> ClientTool:
        """Returns the client's tool behind a function; one that nobody declared is a function of that name."""
        return self._tools.get(function) or ClientTool("function", function)

    def function_name(self, name: str, namespace: str | None = None) -> str:
        """Returns the function's name of a client's tool, declared in this request or not.

        Args:
            name: Within its namespace.
            namespace: None for a tool at the top level, or if the client did not say.
        """
        if (known := self._names.get((namespace, name))) is not None:
            return known
        if namespace is not None and namespace != name:  # OpenAI's search gives a tool it has found its own name as one
            return _flat_name(namespace, name)
        inner = self._inner.get(name, ())
        return inner[0] if len(inner) == 1 else name

    def names_in(self, namespace: Any) -> list[str]:
        """Returns the names of a namespace's functions."""
        return [name for name, tool in self._tools.items() if tool.namespace == namespace]

    def functions_named(self, names: Iterable[str]) -> list[dict[str, Any]]:
        """Returns the functions of these names, in the client's order."""
        kept = set(names)
        return [tool for tool in self.functions if tool["function"]["name"] in kept]


def read_tools(tools: Iterable[Any]) -> ToolTable:
    """Returns the table of a request's tools.

    Raises:
        InvalidRequestError: A tool is no object, or a function or custom tool has no name.
    """
    table = ToolTable()
    for index, tool in enumerate(tools):
        _read_tool(table, tool, None, f"tools[{index}]")
    return table


def _read_tool(table: ToolTable, tool: Any, namespace: str | None, param: str) -> None:
    if not isinstance(tool, Mapping):
        raise InvalidRequestError(f"`{param}` must be an object.", param=param)
    kind = tool.get("type") or "function"
    if kind == "namespace" and namespace is None:
        inside = _name_of(tool, param)
        for index, inner in enumerate(_tools_in(tool, param)):
            _read_tool(table, inner, inside, f"{param}.tools[{index}]")
    elif kind == "function":
        # Chat's nested shape is read as well: agents that know both APIs send it here.
        _add_function(table, _nested(tool, "function"), namespace, param)
    elif kind == "custom":
        _add_custom(table, _nested(tool, "custom"), namespace, param)
    elif (built_in := BUILT_IN.get(str(kind))) is not None and _is_run_by_client(tool):
        given = {name: tool.get(name) or getattr(built_in, name) for name in ("description", "parameters")}
        if skills := _skills_of(tool):
            given["description"] = "\n".join(
                [f"{given['description']}\n\nSkills, each explained in its SKILL.md:", *skills]
            )
        if kind == COMPUTER_PREVIEW:
            size = f"{tool.get('display_width')} by {tool.get('display_height')} pixels"
            given["description"] += f" The screen has {size}."
        table.add(ClientTool(kind, kind), given)
    else:
        table.dropped.append(str(kind))


def _is_run_by_client(tool: Mapping[str, Any]) -> bool:
    """Returns whether a built-in tool is not one that OpenAI runs, in a container or by itself."""
    if tool["type"] == TOOL_SEARCH:
        return bool(tool.get("execution") == "client")
    environment = tool.get("environment")
    return not isinstance(environment, Mapping) or environment.get("type") == "local"  # a computer's is a name


def _skills_of(tool: Mapping[str, Any]) -> list[str]:
    """Returns a line for each skill of a client's shell: its name, its folder and what it is for."""
    environment = tool.get("environment")
    skills = environment.get("skills") if isinstance(environment, Mapping) else None
    given = [each for each in skills if isinstance(each, Mapping)] if isinstance(skills, list) else []
    return [f"- {each.get('name')} ({each.get('path')}): {each.get('description')}" for each in given]


def _tools_in(holder: Mapping[str, Any], param: str) -> list[Any]:
    tools = holder.get("tools") or []
    if not isinstance(tools, list):
        raise InvalidRequestError(f"`{param}.tools` must be a list.", param=f"{param}.tools")
    return tools


def _nested(tool: Mapping[str, Any], member: str) -> Mapping[str, Any]:
    inner = tool.get(member)
    return inner if isinstance(inner, Mapping) else tool


def _add_function(table: ToolTable, tool: Mapping[str, Any], namespace: str | None, param: str) -> None:
    function = {"description": tool.get("description"), "strict": tool.get("strict")}
    parameters = tool.get("parameters") or _NO_PARAMETERS
    table.add(ClientTool("function", _name_of(tool, param), namespace), {**function, "parameters": parameters})


def _add_custom(table: ToolTable, tool: Mapping[str, Any], namespace: str | None, param: str) -> None:
    description = [str(tool.get("description") or "")]
    form = tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        grammar = _nested(form, "grammar")
        syntax, definition = grammar.get("syntax"), grammar.get("definition")
        description.append(f"The input must match this {syntax} grammar:\n{definition}")
    function = {"description": "\n\n".join(filter(None, description)), "parameters": _CUSTOM_PARAMETERS}
    table.add(ClientTool("custom", _name_of(tool, param), namespace), function)


def _name_of(tool: Mapping[str, Any], param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"`{param}` has no name.", param=f"{param}.name")
    return name


def _flat_name(namespace: str, name: str) -> str:
    flat = f"{namespace}__{name}"
    return flat if len(flat) <= _NAME_LIMIT else _digest_name(namespace, name)


def _digest_name(namespace: str, name: str) -> str:
    """Returns a short name that is the same in every turn, for a tool whose plain name is too long or taken."""
    digest = blake2b(f"{namespace}\0{name}".encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{name[: _NAME_LIMIT - _DIGEST - 1]}_{digest}"


def read_choice(choice: Any, table: ToolTable) -> tuple[list[dict[str, Any]], Any]:
    """Returns the functions that may be called and chat's `tool_choice`.

    `allowed_tools` becomes a shorter list of functions: engines do not know the field.

    Raises:
        InvalidRequestError: A hosted tool is forced, or a call is required and no tool remains.
    """
    if not isinstance(choice, Mapping):
        return table.functions, _checked(choice, table.functions, table)
    kind = choice.get("type")
    if kind in _PLAIN_CHOICES:
        return table.functions, _checked(kind, table.functions, table)
    if kind == "allowed_tools":
        return _allowed(_nested(choice, "allowed_tools"), table)
    if kind is not None and (name := _function_of(choice, table)) is not None:
        return table.functions, {"type": "function", "function": {"name": name}}
    raise _forced_hosted(str(kind))


def _allowed(allowed: Mapping[str, Any], table: ToolTable) -> tuple[list[dict[str, Any]], Any]:
    names: list[str] = []
    for tool in _tools_in(allowed, "tool_choice"):
        if not isinstance(tool, Mapping):
            continue
        if tool.get("type") == "namespace":
            names += table.names_in(tool.get("name"))
        elif (name := _function_of(tool, table)) is not None:
            names.append(name)
    kept = table.functions_named(names)
    return kept, _checked(allowed.get("mode", "auto"), kept, table)


def _checked(choice: Any, functions: list[dict[str, Any]], table: ToolTable) -> Any:
    if choice == "required" and not functions and table.dropped:
        raise _forced_hosted(", ".join(table.dropped))
    return choice


def _function_of(choice: Mapping[str, Any], table: ToolTable) -> str | None:
    """Returns the name of the function that is chosen; None for a tool that is not run here."""
    kind = str(choice.get("type", "function"))
    if kind in ("function", "custom"):
        named = _nested(choice, kind)
        return table.function_name(str(named.get("name")), named.get("namespace"))
    return kind if table.client_tool(kind).kind == kind else None


def _forced_hosted(kind: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`tool_choice` demands a tool of type {kind}, which only OpenAI can run. Offer functions or custom tools, or "
        "choose `auto`.",
        param="tool_choice",
        code="unsupported_tool",
    )
