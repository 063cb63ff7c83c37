"""Steps take as long as the batch that shares them, in virtual time."""

import asyncio
import re
from collections.abc import Mapping
from typing import Any

import pytest

from bench.goodput.virtual_client import Answer, ask
from lab.sim import SimSettings, build_sim_app
from lab.simulation.virtual_time import run_in_virtual_time
from policies.step_times import PUBLISHED
from serve.http1.asgi import AsgiApp


def settings(**values: Any) -> SimSettings:
    economics = {"economics": {}, "content_tokens": [300, 300], "grammar": "hermes"}
    return SimSettings.from_mapping(economics | values)


def body(number: int, text: str = "") -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": f"{text}{number}"}]}


def answers(sim: SimSettings, bodies: list[dict[str, Any]]) -> list[Answer]:
    async def main() -> list[Answer]:
        app = build_sim_app(sim)
        return await asyncio.gather(*(ask(app, one) for one in bodies))

    return run_in_virtual_time(main())


@pytest.mark.parametrize("drafts", [0, 1, 3])
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_the_engine_keeps_to_its_own_table_within_two_percent(batch: int, drafts: int) -> None:
    sim = settings(num_speculative_tokens=drafts)
    found = answers(sim, [body(number) | {"max_tokens": 200} for number in range(batch)])
    together_s = min(answer.end_s for answer in found)  # until then, all of them run
    steps = min(
        (answer.usage["metrics"]["speculative_decoding"]["num_spec_steps"] if drafts else answer.tokens)
        for answer in found
    )
    prefill_s = batch / 20_000
    assert (together_s - prefill_s) / steps == pytest.approx(PUBLISHED.at(batch, drafts), rel=0.02)


def test_a_request_beyond_the_seats_waits_for_the_first_to_end() -> None:
    first, second = answers(settings(max_num_seqs=1), [body(1), body(2)])
    assert second.first_s > first.end_s


def test_a_prompt_that_is_cached_is_not_computed_again() -> None:
    system = {"role": "system", "content": "Be exact. " * 40_000}
    sim = settings()

    async def main() -> list[Answer]:
        app = build_sim_app(sim)
        return [await ask(app, {"messages": [system, *body(number)["messages"]]}) for number in range(2)]

    cold, warm = run_in_virtual_time(main())
    assert cold.first_s - cold.began_s > 4.9  # 100,000 tokens at 20,000 a second
    assert warm.first_s - warm.began_s < 0.1


def test_a_client_that_leaves_makes_room_in_the_batch_and_in_the_queue() -> None:
    async def main() -> Answer:
        app = build_sim_app(settings(max_num_seqs=1))
        leavers = [asyncio.create_task(ask(app, body(number))) for number in range(3)]
        await asyncio.sleep(0.05)
        for task in leavers:
            task.cancel()
        await asyncio.gather(*leavers, return_exceptions=True)
        return await ask(app, body(9))

    answer = run_in_virtual_time(main())
    assert answer.first_s - answer.began_s < 0.1


def test_classes_are_accepted_by_their_own_profiles() -> None:
    accepted = {"tools": [1.0], "json": [0.5], "thinking": [0.5], "prose": [0.0]}
    sim = settings(num_speculative_tokens=3, acceptance=accepted)
    tool = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
    prose, tools = answers(sim, [body(1), body(1) | {"tools": [tool], "tool_choice": "required"}])
    assert prose.usage["metrics"]["speculative_decoding"]["mean_acceptance_length"] == 1.0
    assert tools.usage["metrics"]["speculative_decoding"]["mean_acceptance_length"] > 3.0


async def preemptions(app: AsgiApp) -> float:
    """What the engine's metrics tell of them."""
    sent: list[Mapping[str, Any]] = []

    async def send(message: Mapping[str, Any]) -> None:
        sent.append(message)

    await app({"type": "http", "method": "GET", "path": "/metrics", "headers": []}, asyncio.Event().wait, send)
    text = b"".join(message.get("body", b"") for message in sent).decode()
    (counted,) = re.findall(r"^vllm:num_preemptions_total\{.*\} (.*)$", text, re.MULTILINE)
    return float(counted)


@pytest.mark.parametrize(("overcommit", "preempts"), [(1.0, False), (4.0, True)])
def test_answers_that_outgrow_an_overcommitted_memory_are_preempted_and_still_whole(
    overcommit: float, preempts: bool
) -> None:
    sim = settings(economics={"kv_tokens": 800, "overcommit": overcommit})

    async def main() -> tuple[list[Answer], float]:
        app = build_sim_app(sim)
        found = await asyncio.gather(*(ask(app, one) for one in bodies))
        return found, await preemptions(app)

    bodies = [body(number) for number in range(4)]
    found, preempted = run_in_virtual_time(main())
    assert [answer.tokens for answer in found] == [answer.tokens for answer in answers(settings(), bodies)]
    assert bool(preempted) == preempts
