"""Many clients at once, some of whom leave: nothing is left running behind them."""

import asyncio
from random import Random

import openai
import pytest
from support.session import until_idle

pytestmark = pytest.mark.engine


async def stream_for_a_while(client: openai.AsyncOpenAI, model: str, patience: int | None) -> str:
    """Read a stream to its end, or leave after `patience` chunks."""
    stream = await client.chat.completions.create(
        model=model,
        messages=[{"role": "user", "content": "Tell me about Lisbon"}],
        stream=True,
        temperature=0,
        max_tokens=120,
        extra_body={"ignore_eos": patience is not None},
    )
    read = ""
    count = 0
    async with stream:
        async for chunk in stream:
            read += "".join(choice.delta.content or "" for choice in chunk.choices)
            count += 1
            if patience is not None and count >= patience:
                break
    return read


async def test_32_concurrent_streams_with_random_disconnects_leave_nothing_running(client: openai.AsyncOpenAI) -> None:
    rng = Random(7)
    plans = [(rng.choice(("tiny-kimi", "tiny-qwen")), rng.choice((None, 1, 3, 10, 30))) for _ in range(32)]
    texts = await asyncio.gather(*(stream_for_a_while(client, model, patience) for model, patience in plans))
    whole = {model: text for (model, patience), text in zip(plans, texts, strict=True) if patience is None}
    for (model, patience), text in zip(plans, texts, strict=True):
        assert "Lisbon" in text if patience is None else whole.get(model, text).startswith(text[:5])
    for model in ("tiny-kimi", "tiny-qwen"):
        for pool in ("speculative", "standard"):
            await until_idle(model, pool)


async def test_a_client_that_leaves_an_unanswered_call_frees_the_engine(client: openai.AsyncOpenAI) -> None:
    with pytest.raises(openai.APITimeoutError):
        await client.with_options(timeout=0.5).chat.completions.create(
            model="tiny-qwen",
            messages=[{"role": "user", "content": "Tell me about Lisbon"}],
            max_tokens=900,
            n=4,
            extra_body={"ignore_eos": True},
        )
    for pool in ("speculative", "standard"):
        await until_idle("tiny-qwen", pool)
