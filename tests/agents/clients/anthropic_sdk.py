"""Anthropic's SDK: its tool runner, whole and streamed, and a structured output."""

from anthropic import AsyncAnthropic, beta_async_tool
from harness import MODEL, QUESTION, TEMPERATURE, Loop, Weather, main
from pydantic import BaseModel


class Trip(BaseModel):
    city: str
    days: int


def client(url: str) -> AsyncAnthropic:
    return AsyncAnthropic(base_url=url, api_key="none", max_retries=0)


def loop(*, stream: bool, **asked: object) -> Loop:
    async def run(url: str, weather: Weather) -> str:
        @beta_async_tool
        async def get_weather(city: str) -> str:
            """The weather in a city.

            Args:
                city: Its name.
            """
            return weather.get_weather(city)

        question = [{"role": "user", "content": QUESTION}]
        anthropic = client(url)
        counted = await anthropic.messages.count_tokens(model=MODEL, messages=question, tools=[get_weather.to_dict()])
        assert counted.input_tokens > 0
        runner = anthropic.beta.messages.tool_runner(
            model=MODEL,
            max_tokens=2000,
            messages=question,
            tools=[get_weather],
            stream=stream,
            extra_body={"temperature": TEMPERATURE},
            **asked,
        )
        async for turn in runner:
            message = await turn.get_final_message() if stream else turn
            weather.tokens += message.usage.output_tokens
        return "".join(block.text for block in message.content if block.type == "text")

    return run


async def document(url: str, _: Weather) -> str:
    question = [{"role": "user", "content": "Plan a trip."}]
    message = await client(url).messages.parse(model=MODEL, max_tokens=2000, messages=question, output_format=Trip)
    return message.parsed_output.model_dump_json()


THINKING = {"thinking": {"type": "enabled", "budget_tokens": 1024}}
main(
    {
        "whole": loop(stream=False),
        "streamed": loop(stream=True),
        "thinking whole": loop(stream=False, **THINKING),
        "thinking streamed": loop(stream=True, **THINKING),
        "document": document,
    }
)
