"""Speculation off for one request inside a speculative engine: proven by what vLLM itself counts."""

import asyncio
from typing import Any

import pytest
from support.session import Behind

pytestmark = pytest.mark.engine

POOLS = [
    ("tiny-kimi", "speculative", "eagle3"),
    ("tiny-qwen", "speculative", "draft_model"),
    ("tiny-qwen", "ngram", "ngram"),
]


def ask(model: str, about: str, opt_out: bool) -> dict[str, Any]:
    body: dict[str, Any] = {
        "model": model,
        "messages": [{"role": "user", "content": f"Tell me about {about}"}],
        "temperature": 0,
        "max_tokens": 80,
        "ignore_eos": True,
    }
    return body | ({"vllm_xargs": {"enable_speculative": 0}} if opt_out else {})


def drafted(answer: dict[str, Any]) -> int:
    return int(answer["metrics"]["speculative_decoding"]["num_draft_tokens"])


def text(answer: dict[str, Any]) -> tuple[str | None, str | None]:
    message = answer["choices"][0]["message"]
    return message["content"], message.get("reasoning")


@pytest.mark.usefixtures("gateway_url")
@pytest.mark.parametrize(("model", "pool", "method"), POOLS)
async def test_an_opted_out_request_drafts_nothing_while_its_neighbours_in_the_batch_do(
    model: str, pool: str, method: str
) -> None:
    engine = await Behind.pool(model, pool)
    abouts = ("Lisbon", "green tea", "red pandas", "Oslo")
    bodies = [ask(model, about, opt_out) for about in abouts for opt_out in (True, False)]
    answers = await asyncio.gather(*map(engine.chat, bodies))
    out, others = answers[0::2], answers[1::2]
    assert [drafted(each) for each in out] == [0, 0, 0, 0]
    assert all(drafted(each) > 0 for each in others)
    assert [text(each) for each in out] == [text(each) for each in others]


@pytest.mark.usefixtures("gateway_url")
@pytest.mark.parametrize(("model", "pool", "method"), POOLS)
async def test_drafts_are_really_accepted(model: str, pool: str, method: str) -> None:
    engine = await Behind.pool(model, pool)
    answer = await engine.chat(ask(model, "Lisbon", opt_out=False))
    assert answer["metrics"]["speculative_decoding"]["num_accepted_draft_tokens"] > 0
