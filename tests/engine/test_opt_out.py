"""Speculation off for one request inside a speculative engine: proven by what vLLM itself counts."""

import asyncio
from collections import defaultdict
from dataclasses import dataclass
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.engine

ABOUT = ("Lisbon", "green tea", "red pandas", "Oslo", "Lima", "maps", "rain", "glass", "tin", "salt", "wool", "clay")


@dataclass
class Told:
    """One answer: its text, where it came from and what vLLM drafted for it."""

    pool: str
    speculative: str
    text: str
    drafted: int
    accepted: int


async def tell(client: openai.AsyncOpenAI, model: str, about: str, wish: bool | None) -> Told:
    extra: dict[str, Any] = {} if wish is None else {"enable_speculative": wish}
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me about {about}"}],
        temperature=0,
        max_tokens=60,
        extra_body=extra,
    )
    answer = raw.parse()
    counts = ((answer.model_extra or {}).get("metrics") or {}).get("speculative_decoding") or {}
    return Told(
        raw.headers["x-specgate-pool"],
        raw.headers["x-specgate-speculative"],
        answer.choices[0].message.content or "",
        counts.get("num_draft_tokens", -1),
        counts.get("num_accepted_draft_tokens", -1),
    )


@pytest.mark.parametrize(("model", "pools"), [("tiny-kimi", {"speculative"}), ("tiny-qwen", {"speculative", "ngram"})])
async def test_an_opted_out_request_drafts_nothing_while_its_neighbours_in_the_batch_do(
    client: openai.AsyncOpenAI, model: str, pools: set[str]
) -> None:
    """EAGLE3 on tiny-kimi; a draft model and ngram on tiny-qwen, between which the conversation decides."""
    asked = [(about, wish) for about in ABOUT for wish in (False, None)]
    told = await asyncio.gather(*(tell(client, model, about, wish) for about, wish in asked))
    by_pool: dict[str, dict[str, list[Told]]] = defaultdict(lambda: {"on": [], "off": []})
    for each in told:
        by_pool[each.pool][each.speculative].append(each)
    assert set(by_pool) == pools
    for answers in by_pool.values():
        assert answers["off"]
        assert all(each.drafted == 0 for each in answers["off"])
        assert all(each.drafted > 0 for each in answers["on"])
        assert sum(each.accepted for each in answers["on"]) > 0
    assert [each.text for each in told[0::2]] == [each.text for each in told[1::2]]
