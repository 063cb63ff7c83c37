"""Speculation off for one request inside a speculative engine: proven by what vLLM itself counts."""

import asyncio
from dataclasses import dataclass
from typing import Any

import openai
import pytest

pytestmark = pytest.mark.engine

ABOUT = ("Lisbon", "green tea", "red pandas", "Oslo", "Lima", "maps", "rain")


@dataclass
class Told:
    """One answer: its text, where it came from and what vLLM drafted for it."""

    pool: str
    speculative: str
    text: str
    drafted: int
    accepted: int


async def tell(client: openai.AsyncOpenAI, model: str, about: str, preference: bool | None) -> Told:
    extra: dict[str, Any] = {} if preference is None else {"enable_speculative": preference}
    raw = await client.chat.completions.with_raw_response.create(
        model=model,
        messages=[{"role": "user", "content": f"Tell me about {about}"}],
        temperature=0,
        max_tokens=60,
        extra_body=extra,
        extra_headers={"x-specgate-drafts": "true"},
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


@pytest.mark.parametrize(
    ("model", "method"), [("tiny-kimi", "eagle3"), ("tiny-qwen", "draft_model"), ("tiny-qwen-ngram", "ngram")]
)
async def test_an_opted_out_request_drafts_nothing_while_its_neighbours_in_the_batch_do(
    client: openai.AsyncOpenAI, model: str, method: str
) -> None:
    reply = await asyncio.gather(
        *(tell(client, model, about, preference) for about in ABOUT for preference in (False, None))
    )
    out, others = reply[0::2], reply[1::2]
    assert {each.pool for each in reply} == {"speculative"}
    assert {each.speculative for each in out} == {"off"}
    assert {each.speculative for each in others} == {"on"}
    assert {each.drafted for each in out} == {0}
    assert all(each.drafted > 0 for each in others)
    assert sum(each.accepted for each in others) > 0
    assert [each.text for each in out] == [each.text for each in others]
