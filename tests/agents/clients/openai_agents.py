"""OpenAI's Agents SDK, over the Responses API and over chat completions."""

from agents import (
    Agent,
    AgentOutputSchema,
    Model,
    ModelSettings,
    OpenAIChatCompletionsModel,
    OpenAIResponsesModel,
    Runner,
    function_tool,
    set_tracing_disabled,
)
from harness import MODEL, QUESTION, TEMPERATURE, Loop, Weather, main
from openai import AsyncOpenAI
from pydantic import BaseModel

set_tracing_disabled(True)
APIS = {"responses": OpenAIResponsesModel, "chat": OpenAIChatCompletionsModel}


class Trip(BaseModel):
    city: str
    days: int


def model(url: str, api: str) -> Model:
    return APIS[api](MODEL, AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))


def loop(api: str, *, stream: bool) -> Loop:
    async def run(url: str, weather: Weather) -> str:
        agent = Agent(
            name="agent",
            tools=[function_tool(weather.get_weather)],
            model=model(url, api),
            model_settings=ModelSettings(temperature=TEMPERATURE, include_usage=True),
        )
        if stream:
            result = Runner.run_streamed(agent, QUESTION)
            async for _ in result.stream_events():
                pass
        else:
            result = await Runner.run(agent, QUESTION)
        weather.tokens = result.context_wrapper.usage.output_tokens
        return str(result.final_output)

    return run


async def document(url: str, _: Weather) -> str:
    agent = Agent(name="agent", output_type=AgentOutputSchema(Trip), model=model(url, "responses"))
    return str((await Runner.run(agent, "Plan a trip.")).final_output.model_dump_json())


main(
    {f"{api} {how}": loop(api, stream=how == "streamed") for api in APIS for how in ("whole", "streamed")}
    | {"responses document": document}
)
