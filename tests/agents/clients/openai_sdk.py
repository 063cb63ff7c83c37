"""OpenAI's SDK: `responses.stream` with its strict accumulator, `responses.parse`, and a loop by hand."""

import json

from harness import MODEL, QUESTION, TEMPERATURE, Loop, Weather, main
from openai import AsyncOpenAI
from openai.types.responses import Response
from pydantic import BaseModel

TOOL = {
    "type": "function",
    "name": "get_weather",
    "description": "The weather in a city",
    "parameters": {
        "type": "object",
        "properties": {"city": {"type": "string"}},
        "required": ["city"],
        "additionalProperties": False,
    },
    "strict": True,
}


class Trip(BaseModel):
    city: str
    days: int


def client(url: str) -> AsyncOpenAI:
    return AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0)


def loop(*, stream: bool) -> Loop:
    async def run(url: str, weather: Weather) -> str:
        items: list = [{"role": "user", "content": QUESTION}]
        while True:
            response = await answered(client(url), items, stream=stream)
            if response.status != "completed":
                raise ValueError(f"{response.status}: {response.error}")
            weather.tokens += response.usage.output_tokens
            calls = [item for item in response.output if item.type == "function_call"]
            if not calls:
                return response.output_text
            items += [item.model_dump(exclude_none=True) for item in response.output]
            for call in calls:
                result = weather.get_weather(**json.loads(call.arguments))
                items.append({"type": "function_call_output", "call_id": call.call_id, "output": result})

    return run


async def answered(openai: AsyncOpenAI, items: list, *, stream: bool) -> Response:
    asked = {"model": MODEL, "input": items, "tools": [TOOL], "store": False, "temperature": TEMPERATURE}
    if not stream:
        return await openai.responses.create(**asked)
    async with openai.responses.stream(**asked) as events:
        return await events.get_final_response()


async def document(url: str, _: Weather) -> str:
    response = await client(url).responses.parse(model=MODEL, input="Plan a trip.", text_format=Trip)
    return response.output_parsed.model_dump_json()


main({"whole": loop(stream=False), "streamed": loop(stream=True), "document": document})
