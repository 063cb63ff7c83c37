"""LangChain's models of OpenAI and Anthropic: its own loop over messages and tools."""

from harness import MODEL, QUESTION, TEMPERATURE, Loop, Weather, main
from langchain_anthropic import ChatAnthropic
from langchain_core.language_models import BaseChatModel
from langchain_core.messages import AIMessage, AIMessageChunk, BaseMessage, HumanMessage
from langchain_core.tools import tool
from langchain_openai import ChatOpenAI
from pydantic import BaseModel


class Trip(BaseModel):
    """A trip."""

    city: str
    days: int


def model(url: str, api: str) -> BaseChatModel:
    if api == "messages":
        return ChatAnthropic(model=MODEL, base_url=url, api_key="none", max_retries=0, temperature=TEMPERATURE)
    openai = {"model": MODEL, "base_url": f"{url}/v1", "api_key": "none", "max_retries": 0, "temperature": TEMPERATURE}
    return ChatOpenAI(**openai, use_responses_api=api == "responses", stream_usage=True)


def loop(api: str, *, stream: bool) -> Loop:
    async def run(url: str, weather: Weather) -> str:
        get_weather = tool(weather.get_weather)
        bound = model(url, api).bind_tools([get_weather])
        messages: list[BaseMessage] = [HumanMessage(QUESTION)]
        while True:
            answer: AIMessage = await (streamed(bound, messages) if stream else bound.ainvoke(messages))
            messages.append(answer)
            weather.tokens += answer.usage_metadata["output_tokens"]
            if answer.invalid_tool_calls:
                raise ValueError(f"a call that can't be read: {answer.invalid_tool_calls}")
            if not answer.tool_calls:
                return str(answer.text)
            messages += [await get_weather.ainvoke(call) for call in answer.tool_calls]

    return run


async def streamed(bound, messages: list[BaseMessage]) -> AIMessageChunk:
    answer = None
    async for piece in bound.astream(messages):
        answer = piece if answer is None else answer + piece
    assert isinstance(answer, AIMessageChunk)
    return answer


def document(api: str) -> Loop:
    async def run(url: str, _: Weather) -> str:
        trip = await model(url, api).with_structured_output(Trip).ainvoke("Plan a trip.")
        return trip.model_dump_json()

    return run


APIS = ("responses", "chat", "messages")
main(
    {f"{api} {how}": loop(api, stream=how == "streamed") for api in APIS for how in ("whole", "streamed")}
    | {f"{api} document": document(api) for api in APIS}
)
