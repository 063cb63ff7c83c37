"""Tools in all shapes of the Responses API as functions of a chat completion, and the way back by name.

An engine knows functions only. A custom tool becomes a function with one string, a namespace's tools become functions
with the namespace in their name, and a hosted tool, which only OpenAI can run, is left out.
"""

from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from hashlib import blake2b
from typing import Any, Literal

from serve.errors import InvalidRequestError

CUSTOM_INPUT = "input"  # the one parameter of a custom tool's function
_NAME_LIMIT = 64  # characters, OpenAI's own
_DIGEST = 12
_NO_PARAMETERS: dict[str, Any] = {"type": "object", "properties": {}}
_CUSTOM_PARAMETERS: dict[str, Any] = {
    "type": "object",
    "properties": {CUSTOM_INPUT: {"type": "string", "description": "The tool's whole input, as plain text."}},
    "required": [CUSTOM_INPUT],
    "additionalProperties": False,
}


@dataclass(frozen=True, slots=True)
class ClientTool:
    """A tool as the client named it.

    Attributes:
        kind: `custom` for a tool that takes plain text.
        name: Within its namespace.
        namespace: None for a tool at the top level.
    """

    kind: Literal["function", "custom"]
    name: str
    namespace: str | None = None


@dataclass
class ToolTable:
    """The tools of one request, by either side's name.

    Attributes:
        functions: The tools of the chat completion, in the order in which the client gave them.
        by_function: The client's tools by the function's name.
        dropped: The types of tools that were left out.
    """

    functions: list[dict[str, Any]] = field(default_factory=list)
    by_function: dict[str, ClientTool] = field(default_factory=dict)
    dropped: list[str] = field(default_factory=list)

    def client_tool(self, function: str) -> ClientTool:
        """Returns the client's tool behind a function; one that nobody declared is a function of that name."""
        return self.by_function.get(function) or ClientTool("function", function)

    def function_name(self, name: str, namespace: str | None = None) -> str:
        """Returns the function's name of a client's tool, declared in this request or not.

        Args:
            name: Within its namespace.
            namespace: None for a tool at the top level, or if the client did not say.
        """
        for function, tool in self.by_function.items():
            if tool.name == name and tool.namespace == namespace:
                return function
        if namespace is not None:
            return _flat_name(namespace, name)
        inner = [function for function, tool in self.by_function.items() if tool.name == name]
        return inner[0] if len(inner) == 1 else name

    def only(self, names: Iterable[str]) -> "ToolTable":
        """Returns the table with the functions of these names alone."""
        kept = set(names)
        functions = [tool for tool in self.functions if tool["function"]["name"] in kept]
        return ToolTable(functions, self.by_function, self.dropped)


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
        raise InvalidRequestError(f"`{param}` must be an object.", param)
    kind = tool.get("type") or "function"
    if kind == "namespace":
        for index, inner in enumerate(tool.get("tools") or ()):
            _read_tool(table, inner, _name_of(tool, param), f"{param}.tools[{index}]")
    elif kind == "function":
        # Chat's nested shape is read as well: agents that know both APIs send it here.
        nested = tool.get("function")
        _add_function(table, nested if isinstance(nested, Mapping) else tool, namespace, param)
    elif kind == "custom":
        nested = tool.get("custom")
        _add_custom(table, nested if isinstance(nested, Mapping) else tool, namespace, param)
    else:
        table.dropped.append(str(kind))


def _add_function(table: ToolTable, tool: Mapping[str, Any], namespace: str | None, param: str) -> None:
    function = {"description": tool.get("description"), "strict": tool.get("strict")}
    parameters = tool.get("parameters") or _NO_PARAMETERS
    _add(table, ClientTool("function", _name_of(tool, param), namespace), {**function, "parameters": parameters})


def _add_custom(table: ToolTable, tool: Mapping[str, Any], namespace: str | None, param: str) -> None:
    description = [str(tool.get("description") or "")]
    form = tool.get("format")
    if isinstance(form, Mapping) and form.get("type") == "grammar":
        grammar = form.get("grammar") if isinstance(form.get("grammar"), Mapping) else form
        assert isinstance(grammar, Mapping)
        syntax, definition = grammar.get("syntax"), grammar.get("definition")
        description.append(f"The input must match this {syntax} grammar:\n{definition}")
    function = {"description": "\n\n".join(filter(None, description)), "parameters": _CUSTOM_PARAMETERS}
    _add(table, ClientTool("custom", _name_of(tool, param), namespace), function)


def _add(table: ToolTable, tool: ClientTool, function: Mapping[str, Any]) -> None:
    """Adds a tool under a name that no other has; the first of two with one name and namespace stays."""
    if any((tool.name, tool.namespace) == (other.name, other.namespace) for other in table.by_function.values()):
        table.dropped.append(f"{tool.name} (given twice)")
        return
    name = tool.name if tool.namespace is None else _flat_name(tool.namespace, tool.name)
    if name in table.by_function:
        name = _digest_name(f"{tool.namespace}", tool.name)
    table.by_function[name] = tool
    members = {key: value for key, value in function.items() if value is not None and value != ""}
    table.functions.append({"type": "function", "function": {"name": name, **members}})


def _name_of(tool: Mapping[str, Any], param: str) -> str:
    name = tool.get("name")
    if not isinstance(name, str) or not name:
        raise InvalidRequestError(f"`{param}` has no name.", f"{param}.name")
    return name


def _flat_name(namespace: str, name: str) -> str:
    flat = f"{namespace}__{name}"
    return flat if len(flat) <= _NAME_LIMIT else _digest_name(namespace, name)


def _digest_name(namespace: str, name: str) -> str:
    """Returns a short name that is the same in every turn, for a tool whose plain name is too long or taken."""
    digest = blake2b(f"{namespace}\0{name}".encode(), digest_size=_DIGEST // 2).hexdigest()
    return f"{name[: _NAME_LIMIT - _DIGEST - 1]}_{digest}"


def read_choice(choice: Any, table: ToolTable) -> tuple[ToolTable, Any]:
    """Returns the tools that may be called and chat's `tool_choice`.

    `allowed_tools` becomes a shorter list of tools: engines do not know the field.

    Args:
        choice: The request's `tool_choice`.
        table: The request's tools.

    Raises:
        InvalidRequestError: A hosted tool is forced, or a call is required and no tool remains.
    """
    if not isinstance(choice, Mapping):
        return table, _checked(choice, table)
    kind = choice.get("type")
    if kind == "allowed_tools":
        return _allowed(choice, table)
    if kind in ("function", "custom"):
        return table, _named(_function_of(choice, table))
    raise _forced_hosted(str(kind))


def _allowed(choice: Mapping[str, Any], table: ToolTable) -> tuple[ToolTable, Any]:
    nested = choice.get("allowed_tools")
    allowed = nested if isinstance(nested, Mapping) else choice
    tools = [tool for tool in allowed.get("tools") or () if isinstance(tool, Mapping)]
    names = [_function_of(tool, table) for tool in tools if tool.get("type", "function") in ("function", "custom")]
    for tool in tools:
        if tool.get("type") == "namespace":
            names += [name for name, each in table.by_function.items() if each.namespace == tool.get("name")]
    kept = table.only(names)
    return kept, _checked(allowed.get("mode", "auto"), kept)


def _checked(choice: Any, table: ToolTable) -> Any:
    if choice == "required" and not table.functions and table.dropped:
        raise _forced_hosted(", ".join(table.dropped))
    return choice


def _function_of(choice: Mapping[str, Any], table: ToolTable) -> str:
    nested = choice.get("function") or choice.get("custom")
    named = nested if isinstance(nested, Mapping) else choice
    return table.function_name(str(named.get("name")), named.get("namespace"))


def _named(function: str) -> dict[str, Any]:
    return {"type": "function", "function": {"name": function}}


def _forced_hosted(kind: str) -> InvalidRequestError:
    return InvalidRequestError(
        f"`tool_choice` demands a tool of type {kind}, which only OpenAI can run. Offer functions or custom tools, or "
        "choose `auto`.",
        "tool_choice",
        "unsupported_tool",
    )
