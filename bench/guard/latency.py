"""Latency added by guard and hold-back, and the cost of a rerun: the same requests to all sides, in turn."""

import asyncio
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from statistics import median

import aiohttp

from bench.guard.correctness import OFF
from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.guard.traffic import Answer, ask, request

PREFILL_MS, STEP_MS = 20.0, 10.0
CONCURRENCY = 4


@dataclass(frozen=True)
class Latency:
    """Medians over streamed tool requests to engines that take 10 ms a step, in milliseconds.

    Attributes:
        way: `engine`: straight to the engine. `off`: through the gateway, no guard. `heal`: with guard and hold-back.
            `rerun`: with guard, answers that ran again on the standard pool.
        first_call_ms: To the first piece of the first tool call; what the guard holds back is the difference.
    """

    way: str
    answers: int
    first_bytes_ms: float
    first_call_ms: float
    end_ms: float


async def measure(requests: int) -> list[Latency]:
    """Clean engines for the ways that compare the guard; for the reruns one whose every other answer is broken."""
    timed = partial(engine, prefill_ms=PREFILL_MS, step_ms=STEP_MS)
    settings = {"fast": timed(), "safe": timed(speculative=False), "faulty": timed(0.5)}
    with (
        engines(settings) as urls,
        gateway(gateway_config(urls["fast"], urls["safe"], "off", OFF)) as (off, _),
        gateway(gateway_config(urls["fast"], urls["safe"], "heal", OFF)) as (heal, _),
        gateway(gateway_config(urls["faulty"], urls["safe"], "heal", OFF)) as (rerun, _),
    ):
        ways = {"engine": urls["fast"], "off": off, "heal": heal, "rerun": rerun}
        answers = await _alternating(ways, requests)
    answers["rerun"] = [answer for answer in answers["rerun"] if answer.rerun]
    return [_medians(way, each) for way, each in answers.items()]


async def _alternating(ways: Mapping[str, str], requests: int) -> dict[str, list[Answer]]:
    """Each request goes every way before the next does, so that whatever slows the machine slows all of them."""
    answers: dict[str, list[Answer]] = {way: [] for way in ways}
    seeds = iter(range(requests))

    async def worker(session: aiohttp.ClientSession) -> None:
        for seed in seeds:
            for way, url in ways.items():
                answers[way].append(await ask(session, url, request("m", seed, stream=True)))

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))
    return answers


def _medians(way: str, answers: Sequence[Answer]) -> Latency:
    first = [answer.first_s for answer in answers if answer.first_s is not None]
    call = [answer.first_call_s for answer in answers if answer.first_call_s is not None]
    end = [answer.end_s for answer in answers]
    return Latency(way, len(answers), *(1000 * median(each) for each in (first, call, end)))
