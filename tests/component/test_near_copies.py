"""Calls with names that are nearly the prompt's, from a pool that changes identifiers, through a gateway."""

import json
from typing import Any

import pytest
from support.guard_stack import chunks_in, healing, post

from lab.deltas import fold_deltas
from lab.probe.echo import EchoPrompt
from lab.sim import SimSettings
from serve.guard.core import Outcome

SLIPPING = SimSettings(model="m", num_speculative_tokens=3, slips=1.0)
PROMPT = EchoPrompt.of(1)


async def answered(setting: str, *, stream: bool) -> tuple[Any, list[Any]]:
    """Returns how the identifiers at the client differ from the prompt's, and the attempts' results."""
    body = {**PROMPT.body(stream=stream), "model": "m"}
    async with healing(SLIPPING, guard={"near_copies": setting}, quarantine={"reference_share": 0}) as (stack, judged):
        status, _, raw = await post(stack.url, body)
    assert status == 200
    chunks = [chunk for chunk in chunks_in(raw) if chunk != "[DONE]"] if stream else []
    message = fold_deltas([choice["delta"] for chunk in chunks for choice in chunk["choices"]]) if stream else None
    answer = {"choices": [{"message": message}]} if stream else json.loads(raw)
    return PROMPT.changes(answer), judged


@pytest.mark.parametrize("stream", [True, False])
async def test_a_changed_identifier_is_counted_against_its_pool(stream: bool) -> None:
    changes, judged = await answered("count", stream=stream)
    assert changes
    assert [(result.pool, result.verdict.outcome) for result in judged] == [("speculative", Outcome.NEAR_COPY)]
    assert judged[0].verdict.counts


@pytest.mark.parametrize("stream", [True, False])
async def test_it_is_copied_right_by_the_standard_pool_where_such_calls_are_rerun(stream: bool) -> None:
    changes, judged = await answered("rerun", stream=stream)
    assert changes == []
    assert [(result.pool, result.verdict.outcome) for result in judged] == [
        ("speculative", Outcome.NEAR_COPY),
        ("standard", Outcome.CLEAN),
    ]


async def test_off_says_nothing_of_it() -> None:
    changes, judged = await answered("off", stream=True)
    assert changes
    assert [result.verdict.outcome for result in judged] == [Outcome.CLEAN]
