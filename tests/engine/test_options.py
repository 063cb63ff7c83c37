"""OpenAI's request options behave as documented, through our parsers in real engines."""

import json
from typing import Any

import openai
import pytest

from lab.demo import SEARCH, WEATHER

pytestmark = [pytest.mark.engine, pytest.mark.parametrize("model", ["tiny-kimi", "tiny-qwen"])]


async def ask(client: openai.AsyncOpenAI, model: str, said: str, **more: Any) -> Any:
    return await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": said}],
        **{"temperature": 0, "max_tokens": 200, "tools": [WEATHER, SEARCH], **more},
    )


def calls(choice: Any) -> list[tuple[str, Any]]:
    return [(call.function.name, json.loads(call.function.arguments)) for call in choice.message.tool_calls or ()]


OSAKA = [("get_weather", {"city": "Osaka"})]


async def test_stop_strings_leave_calls_alone(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "What is the weather in Osaka?", stop=["zzzz", "\n\n\n\n"])
    assert calls(answer.choices[0]) == OSAKA
    async with client.chat.completions.stream(
        model=model,
        messages=[{"role": "user", "content": "What is the weather in Osaka?"}],
        temperature=0,
        max_tokens=200,
        tools=[{**WEATHER, "function": {**WEATHER["function"], "strict": True}}],
        stop=["zzzz", "\n\n\n\n"],
    ) as stream:
        final = await stream.get_final_completion()
    assert calls(final.choices[0]) == OSAKA


async def test_a_stop_string_ends_the_text_before_it(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "Tell me about Lisbon", tools=openai.omit, stop=["large topic"])
    assert answer.choices[0].message.content.endswith("Lisbon is a ")
    assert answer.choices[0].finish_reason == "stop"


async def test_n_gives_that_many_choices_each_parsed(client: openai.AsyncOpenAI, model: str) -> None:
    # vLLM refuses n > 1 with greedy sampling; at this temperature the tiny models say the same all the same.
    answer = await ask(client, model, "What is the weather in Osaka?", n=3, temperature=0.05)
    assert [calls(choice) for choice in answer.choices] == [OSAKA] * 3


async def test_logprobs_come_with_the_text(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "hello", tools=openai.omit, logprobs=True, top_logprobs=2)
    tokens = answer.choices[0].logprobs.content
    assert tokens
    assert all(len(token.top_logprobs) >= 2 for token in tokens)


async def test_tool_choice_none_gives_text_and_no_calls(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "hello", tool_choice="none")
    assert not answer.choices[0].message.tool_calls
    assert answer.choices[0].message.content


async def test_parallel_tool_calls_false_gives_one_call(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "What is the weather in Oslo and Lima?", parallel_tool_calls=False)
    assert calls(answer.choices[0]) == [("get_weather", {"city": "Oslo"})]


async def test_a_cut_answer_says_length(client: openai.AsyncOpenAI, model: str) -> None:
    answer = await ask(client, model, "Tell me about Lisbon", tools=openai.omit, max_tokens=8)
    assert answer.choices[0].finish_reason == "length"


@pytest.mark.parametrize("thinking", [False, True])
async def test_thinking_goes_to_reasoning_and_the_call_stays_a_call(
    client: openai.AsyncOpenAI, model: str, thinking: bool
) -> None:
    template = {"thinking": thinking, "enable_thinking": thinking}
    answer = await ask(client, model, "What is the weather in Osaka?", extra_body={"chat_template_kwargs": template})
    message = answer.choices[0].message
    assert calls(answer.choices[0]) == OSAKA
    assert bool((message.model_extra or {}).get("reasoning")) is thinking
    assert answer.choices[0].finish_reason == "tool_calls"
