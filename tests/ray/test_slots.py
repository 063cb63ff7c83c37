"""A gateway that dies takes no slot with it."""

import openai
import pytest
from support.session import processes, until_ready

pytestmark = pytest.mark.ray


async def test_the_slots_of_a_killed_gateway_are_free_again(gateway_url: str, client: openai.AsyncOpenAI) -> None:
    ask = {"model": "narrow", "messages": [{"role": "user", "content": "hello"}]}  # a pool with one slot
    stream = await client.chat.completions.create(**ask, stream=True)  # type: ignore[call-overload]
    reading = aiter(stream)
    await anext(reading)
    (gateway,) = processes("ServeReplica:specgate:Gateway")
    gateway.kill()
    with pytest.raises(openai.APIError):
        async for _ in reading:
            pass
    await until_ready(gateway_url)
    answer = await client.chat.completions.create(**ask)  # type: ignore[call-overload]
    assert answer.choices[0].message.content
