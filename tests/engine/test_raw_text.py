"""A real vLLM without parsers of its own behind a pool with `parse: gateway`: the gateway reads its raw text."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import openai
import pytest
from support.local import LocalGateway, local_gateway

from lab.demo import SEARCH, WEATHER
from serve.config.gateway import GatewayConfig
from serve.launch import ports

pytestmark = pytest.mark.engine
LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"
OSAKA = [("get_weather", {"city": "Osaka"})]


@pytest.fixture(scope="module")
def raw(tmp_path_factory: pytest.TempPathFactory) -> Iterator[LocalGateway]:
    """The laptop's tiny-qwen with its standard pool alone, and no parsers in the engine."""
    qwen: dict[str, Any] = GatewayConfig.load(LAPTOP).models["tiny-qwen"].model_dump(mode="json")
    args = {name: value for name, value in qwen["engine_args"].items() if not name.endswith("-parser")}
    pool = {**qwen["pools"]["standard"], "parse": "gateway"}
    settings = {**qwen, "engine_args": args, "pools": {"standard": pool}}
    port = ports.free_port()
    with local_gateway(tmp_path_factory.mktemp("raw"), "tiny-qwen", port, settings=settings) as gateway:
        gateway.until_ready()
        yield gateway


@pytest.fixture
def client(raw: LocalGateway) -> openai.OpenAI:
    return openai.OpenAI(base_url=f"{raw.url}/v1", api_key="none", max_retries=0, timeout=60)


def asked(**more: Any) -> dict[str, Any]:
    said = {"role": "user", "content": "What is the weather in Osaka?"}
    return {"model": "tiny-qwen", "messages": [said], "temperature": 0, "max_tokens": 200, **more}


def calls(message: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in message.tool_calls or ()]


@pytest.mark.parametrize("thinking", [False, True])
def test_a_call_in_raw_text_is_the_gateways_to_read_streamed_and_whole(client: openai.OpenAI, thinking: bool) -> None:
    extra = {"chat_template_kwargs": {"enable_thinking": thinking}}
    fields = asked(tools=[WEATHER, SEARCH], extra_body=extra)
    whole = client.chat.completions.create(**fields).choices[0]
    assert (calls(whole.message), whole.finish_reason) == (OSAKA, "tool_calls")
    assert bool(getattr(whole.message, "reasoning", None)) is thinking
    name, arguments, reason = "", "", None
    for chunk in client.chat.completions.create(**fields, stream=True):
        for choice in chunk.choices:
            assert "<tool_call>" not in (choice.delta.content or "")
            for call in choice.delta.tool_calls or ():
                name += call.function.name or ""
                arguments += call.function.arguments or ""
            reason = choice.finish_reason or reason
    assert (name, json.loads(arguments), reason) == (*OSAKA[0], "tool_calls")


def test_a_required_call_is_checked_by_the_guard_as_nothing_else_demands_it(client: openai.OpenAI) -> None:
    answer = client.chat.completions.create(**asked(tools=[WEATHER, SEARCH], tool_choice="required"))
    assert calls(answer.choices[0].message) == OSAKA


def test_an_answer_without_tools_is_text(client: openai.OpenAI) -> None:
    said = client.chat.completions.create(**asked(messages=[{"role": "user", "content": "Tell me about Lisbon"}]))
    assert "Lisbon" in said.choices[0].message.content
    assert said.choices[0].finish_reason == "stop"
