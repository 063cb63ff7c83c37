"""Tools: every shape as a function and back, and the choice among them."""

from typing import Any

import jsonschema_rs
import pytest
from support.responses_api import WEATHER, chat, translated

from serve.dialects.responses.tools import CUSTOM_INPUT, ClientTool, read_tools
from serve.errors import InvalidRequestError

PATCH = {"type": "custom", "name": "apply_patch", "description": "Edits files."}
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": "start: /x/"}
AGENTS = {"type": "namespace", "name": "agents", "description": "d", "tools": [{**WEATHER, "name": "spawn"}]}


def names(body: dict[str, Any]) -> list[str]:
    return [tool["function"]["name"] for tool in body.get("tools", ())]


def test_a_function_keeps_its_name_schema_and_strictness() -> None:
    (tool,) = chat(tools=[{**WEATHER, "strict": True}])["tools"]
    function = {key: WEATHER[key] for key in ("name", "description", "parameters")}
    assert tool == {"type": "function", "function": {**function, "strict": True}}


def test_chats_nested_shape_is_read_as_well() -> None:
    function = {key: WEATHER[key] for key in ("name", "description", "parameters")}
    assert names(chat(tools=[{"type": "function", "function": function}])) == ["get_weather"]


def test_a_function_without_parameters_takes_none() -> None:
    (tool,) = chat(tools=[{"type": "function", "name": "f", "parameters": None, "strict": None}])["tools"]
    assert tool["function"] == {"name": "f", "parameters": {"type": "object", "properties": {}}}


@pytest.mark.parametrize(
    "form", [GRAMMAR, {"type": "grammar", "grammar": {"syntax": "lark", "definition": "start: /x/"}}]
)
def test_a_custom_tool_is_a_function_of_one_string_that_tells_its_grammar(form: dict[str, Any]) -> None:
    (tool,) = chat(tools=[{**PATCH, "format": form}])["tools"]
    assert tool["function"]["parameters"]["required"] == [CUSTOM_INPUT]
    assert "start: /x/" in tool["function"]["description"]


def test_a_namespace_is_flattened_and_restored() -> None:
    table = read_tools([WEATHER, AGENTS])
    assert [tool["function"]["name"] for tool in table.functions] == ["get_weather", "agents__spawn"]
    assert table.client_tool("agents__spawn") == ClientTool("function", "spawn", "agents")
    assert table.function_name("spawn", "agents") == "agents__spawn"
    assert table.function_name("spawn") == "agents__spawn"


@pytest.mark.parametrize("tools", [[{**AGENTS, "name": "n" * 70}], [{**WEATHER, "name": "agents__spawn"}, AGENTS]])
def test_a_name_too_long_or_taken_is_shortened_the_same_way_in_every_turn(tools: list[Any]) -> None:
    table = read_tools(tools)
    flat = table.functions[-1]["function"]["name"]
    assert len(flat) <= 64
    assert flat == read_tools(tools).functions[-1]["function"]["name"]
    assert table.client_tool(flat).name == "spawn"
    assert len({tool["function"]["name"] for tool in table.functions}) == len(table.functions)


def test_hosted_tools_and_doubles_are_left_out() -> None:
    container = {"type": "shell", "environment": {"type": "container_auto"}}
    table = read_tools([{"type": "web_search"}, WEATHER, WEATHER, container, {"type": "tool_search"}])
    assert len(table.functions) == 1
    assert table.dropped == ["web_search", "get_weather (given twice)", "shell", "tool_search"]


@pytest.mark.parametrize(
    "tool",
    [{"type": "shell"}, {"type": "shell", "environment": {"type": "local"}}, {"type": "local_shell"},
     {"type": "apply_patch"}, {"type": "tool_search", "execution": "client"}, {"type": "computer"},
     {"type": "computer_use_preview", "environment": "mac", "display_width": 9, "display_height": 8}],
)  # fmt: skip
def test_a_tool_that_the_client_runs_is_a_function_that_can_be_chosen(tool: dict[str, Any]) -> None:
    forced = {"type": tool["type"]}
    body = chat(tools=[WEATHER, tool], tool_choice=forced)
    assert names(body) == ["get_weather", tool["type"]]
    assert body["tool_choice"] == {"type": "function", "function": {"name": tool["type"]}}
    allowed = {"type": "allowed_tools", "mode": "required", "tools": [forced]}
    assert names(chat(tools=[WEATHER, tool], tool_choice=allowed)) == [tool["type"]]


def test_a_shell_tells_the_skills_that_the_client_has() -> None:
    skills = [{"name": "pdf", "path": "/skills/pdf", "description": "Reads PDF files."}, 3]
    (tool,) = chat(tools=[{"type": "shell", "environment": {"type": "local", "skills": skills}}])["tools"]
    assert "pdf (/skills/pdf): Reads PDF files." in tool["function"]["description"]


@pytest.mark.parametrize(
    ("arguments", "fits"),
    [
        ({"type": "create_file", "path": "a", "diff": "+x"}, True),
        ({"type": "delete_file", "path": "a"}, True),
        ({"type": "update_file", "path": "a"}, False),
        ({"type": "move_file", "path": "a", "diff": ""}, False),
        ({}, False),
    ],
)
def test_clients_get_no_patch_that_they_cannot_read(arguments: dict[str, Any], fits: bool) -> None:
    (tool,) = chat(tools=[{"type": "apply_patch"}])["tools"]
    assert jsonschema_rs.is_valid(tool["function"]["parameters"], arguments) == fits


def test_no_tools_field_is_sent_if_nothing_remains() -> None:
    assert "tools" not in chat(tools=[{"type": "web_search"}], tool_choice="auto")


@pytest.mark.parametrize(
    ("choice", "expected"),
    [
        ("auto", "auto"),
        ("none", "none"),
        ("required", "required"),
        ({"type": "auto"}, "auto"),
        ({"type": "function", "name": "get_weather"}, {"type": "function", "function": {"name": "get_weather"}}),
        ({"type": "custom", "name": "apply_patch"}, {"type": "function", "function": {"name": "apply_patch"}}),
        (
            {"type": "function", "name": "spawn", "namespace": "agents"},
            {"type": "function", "function": {"name": "agents__spawn"}},
        ),
    ],
)
def test_a_choice_names_the_function(choice: Any, expected: Any) -> None:
    assert chat(tools=[WEATHER, PATCH, AGENTS], tool_choice=choice)["tool_choice"] == expected


@pytest.mark.parametrize("mode", ["auto", "required"])
def test_allowed_tools_are_the_only_ones_offered(mode: str) -> None:
    allowed = [{"type": "function", "name": "get_weather"}, {"type": "namespace", "name": "agents"}]
    choice = {"type": "allowed_tools", "mode": mode, "tools": allowed}
    body = chat(tools=[WEATHER, PATCH, AGENTS], tool_choice=choice)
    assert (names(body), body["tool_choice"]) == (["get_weather", "agents__spawn"], mode)


@pytest.mark.parametrize(
    ("tools", "choice"),
    [
        ([WEATHER, {"type": "web_search"}], {"type": "web_search"}),
        ([WEATHER], {"type": "shell"}),
        ([WEATHER], {"name": "get_weather"}),
        ([{**WEATHER, "name": "shell"}], {"type": "shell"}),
        ([{"type": "web_search"}], "required"),
        ([{"type": "mcp"}], {"type": "allowed_tools", "mode": "required", "tools": [{"type": "mcp"}]}),
    ],
)
def test_a_hosted_tool_that_is_forced_is_refused(tools: list[Any], choice: Any) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        translated(tools=tools, tool_choice=choice)
    assert refused.value.param == "tool_choice"


@pytest.mark.parametrize(
    ("tool", "param"),
    [(3, "tools[0]"), ({"type": "function"}, "tools[0].name"), ({"type": "custom", "name": ""}, "tools[0].name")],
)
def test_a_tool_that_cannot_be_read_is_refused(tool: Any, param: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        read_tools([tool])
    assert refused.value.param == param
