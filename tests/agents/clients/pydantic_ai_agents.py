"""Pydantic AI over all three APIs; its models check each event's type strictly."""

from anthropic import AsyncAnthropic
from harness import MODEL, QUESTION, TEMPERATURE, Loop, Weather, main
from openai import AsyncOpenAI
from pydantic import BaseModel
from pydantic_ai import Agent, NativeOutput, ToolOutput
from pydantic_ai.models import Model
from pydantic_ai.models.anthropic import AnthropicModel
from pydantic_ai.models.openai import OpenAIChatModel, OpenAIResponsesModel
from pydantic_ai.providers.anthropic import AnthropicProvider
from pydantic_ai.providers.openai import OpenAIProvider


class Trip(BaseModel):
    city: str
    days: int


def model(url: str, api: str) -> Model:
    if api == "messages":
        client = AsyncAnthropic(base_url=url, api_key="none", max_retries=0)
        return AnthropicModel(MODEL, provider=AnthropicProvider(anthropic_client=client))
    provider = OpenAIProvider(openai_client=AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0))
    return (OpenAIResponsesModel if api == "responses" else OpenAIChatModel)(MODEL, provider=provider)


def loop(api: str, *, stream: bool) -> Loop:
    async def run(url: str, weather: Weather) -> str:
        agent = Agent(model(url, api), tools=[weather.get_weather], model_settings={"temperature": TEMPERATURE})
        if not stream:
            whole = await agent.run(QUESTION)
            weather.tokens = whole.usage.output_tokens
            return whole.output
        async with agent.run_stream(QUESTION) as streamed:
            answer = await streamed.get_output()
            weather.tokens = streamed.usage.output_tokens
            return answer

    return run


def document(api: str, form: type) -> Loop:
    async def run(url: str, _: Weather) -> str:
        return (await Agent(model(url, api), output_type=form(Trip)).run("Plan a trip.")).output.model_dump_json()

    return run


APIS = ("responses", "chat", "messages")
main(
    {f"{api} {how}": loop(api, stream=how == "streamed") for api in APIS for how in ("whole", "streamed")}
    | {"responses document": document("responses", NativeOutput), "chat document": document("chat", NativeOutput)}
    | {f"{api} document by a call": document(api, lambda trip: ToolOutput(trip, name="Trip")) for api in APIS}
)
