"""Custom tools of chat completions, in front of engines that know functions only."""

import json
from collections.abc import AsyncIterator, Mapping
from typing import Any

import openai
import pytest
from support.engines import Engine
from support.guard_stack import config
from support.scripted_model import Fault, scripted_model
from support.stack import Stack, running

TEXT = '*** Begin Patch\n+"é" \\ 𝄞\n*** End Patch'
GRAMMAR = {"type": "grammar", "syntax": "lark", "definition": 'start: "*** Begin Patch"'}
NESTED = {"type": "custom", "custom": {"name": "ApplyPatch", "format": {"type": "grammar", "grammar": GRAMMAR}}}
FLAT = {"type": "custom", "name": "ApplyPatch", "description": "Edits files.", "format": GRAMMAR}  # as Cursor sends it
READ = {"type": "function", "function": {"name": "read", "parameters": {"type": "object"}}}
ASK: Any = [{"role": "user", "content": "Say hello."}]


def engine(fault: Fault = "none") -> Engine:
    return scripted_model(fault, {"ApplyPatch": {"input": TEXT}})


@pytest.fixture(params=["held", "live", "off"])
async def stack(request: pytest.FixtureRequest) -> AsyncIterator[tuple[Stack, list[Engine]]]:
    """A gateway whose speculative pool cuts every call, with each way to send a call, and without a guard none does."""
    guarded = request.param != "off"
    engines = [engine("cut" if request.param == "held" else "none"), engine()]
    guard = {"arguments": request.param} if guarded else {"mode": "off"}
    apps: Mapping[Any, Any] = dict(zip([("m", "speculative"), ("m", "standard")], engines, strict=True))
    async with running(config("hermes", guard), apps) as running_stack:
        yield running_stack, engines


def asked(engines: list[Engine]) -> Any:
    return json.loads(next(each for each in engines if each.requests).requests[-1][1])


@pytest.mark.parametrize("tool", [NESTED, FLAT])
async def test_a_call_of_a_custom_tool_comes_back_as_its_text(stack: tuple[Stack, list[Engine]], tool: Any) -> None:
    gateway, engines = stack
    answer = await gateway.client.chat.completions.create(model="m", messages=ASK, tools=[READ, tool])
    message = answer.choices[0].message
    [call] = message.tool_calls or ()
    assert call.type == "custom"
    assert (call.custom.name, call.custom.input) == ("ApplyPatch", TEXT)
    assert answer.choices[0].finish_reason == "tool_calls"
    function = asked(engines)["tools"][1]["function"]
    assert GRAMMAR["definition"] in function["description"]
    assert function["parameters"]["required"] == ["input"]

    turn: Any = [*ASK, message.to_dict(), {"role": "tool", "tool_call_id": call.id, "content": "Done"}]
    then = await gateway.client.chat.completions.create(model="m", messages=turn, tools=[READ, tool])
    assert then.choices[0].message.content == "The tool says: Done"
    [sent] = asked(engines)["messages"][1]["tool_calls"]
    assert json.loads(sent["function"]["arguments"]) == {"input": TEXT}
    assert "custom" not in sent


@pytest.mark.parametrize("tool", [NESTED, FLAT])
async def test_a_streamed_call_of_a_custom_tool_is_its_text_in_pieces(
    stack: tuple[Stack, list[Engine]], tool: Any
) -> None:
    gateway, _ = stack
    stream: Any = await gateway.client.chat.completions.create(model="m", messages=ASK, tools=[tool], stream=True)
    pieces = [call.to_dict() async for chunk in stream for call in chunk.choices[0].delta.tool_calls or ()]
    first = pieces[0]
    assert (first["index"], first["type"], first["custom"]["name"]) == (0, "custom", "ApplyPatch")
    assert first["id"]
    assert "".join(piece["custom"]["input"] for piece in pieces) == TEXT
    assert not any("function" in piece for piece in pieces)


@pytest.mark.parametrize(
    "choice",
    [
        {"type": "custom", "custom": {"name": "ApplyPatch"}},
        {"type": "custom", "name": "ApplyPatch"},
        {"type": "allowed_tools", "allowed_tools": {"mode": "required", "tools": [NESTED]}},
        "required",
    ],
)
async def test_a_custom_tool_can_be_demanded(stack: tuple[Stack, list[Engine]], choice: Any) -> None:
    gateway, engines = stack
    create: Any = gateway.client.chat.completions.create
    answer = await create(model="m", messages=ASK, tools=[NESTED], tool_choice=choice)
    assert answer.choices[0].message.tool_calls[0].custom.input == TEXT
    named = {"type": "function", "function": {"name": "ApplyPatch"}}
    assert asked(engines)["tool_choice"] == (
        named if choice != "required" and "custom" in choice["type"] else "required"
    )


async def test_a_function_beside_a_custom_tool_is_called_as_ever() -> None:
    model = scripted_model(calls={"read": {"path": "a"}})
    async with running(config("hermes"), {("m", "speculative"): model, ("m", "standard"): model}) as gateway:
        create: Any = gateway.client.chat.completions.create
        answer = await create(model="m", messages=ASK, tools=[NESTED, READ])
        [call] = answer.choices[0].message.tool_calls
        assert (call.type, call.function.arguments) == ("function", '{"path": "a"}')


async def test_a_tool_of_the_provider_beside_it_is_named_as_left_out(stack: tuple[Stack, list[Engine]]) -> None:
    gateway, engines = stack
    create: Any = gateway.client.chat.completions.with_raw_response.create
    raw = await create(model="m", messages=ASK, tools=[NESTED, {"type": "web_search"}])
    assert raw.headers["x-specgate-dropped"] == "tools.web_search"
    assert [tool["function"]["name"] for tool in asked(engines)["tools"]] == ["ApplyPatch"]


async def test_an_answer_that_no_pool_gives_soundly_is_an_error() -> None:
    broken = engine("cut")
    async with running(config("hermes"), {("m", "speculative"): broken, ("m", "standard"): broken}) as gateway:
        create: Any = gateway.client.chat.completions.create
        with pytest.raises(openai.InternalServerError, match="truncated"):
            await create(model="m", messages=ASK, tools=[NESTED])
        with pytest.raises(openai.APIError, match="truncated"):
            async for _ in await create(model="m", messages=ASK, tools=[NESTED], stream=True):
                pass
