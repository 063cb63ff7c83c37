"""Sends thousands of tool requests to a faulty pool: answers with and without the guard, and the cost of reruns."""

import asyncio
from collections import Counter
from collections.abc import Sequence
from dataclasses import dataclass

import aiohttp

from bench.guard.rig import engine, engines, gateway, gateway_config
from bench.guard.traffic import Answer, ask, is_broken, request

CONCURRENCY = 16
OFF = {"enabled": False}


@dataclass(frozen=True)
class Correctness:
    """Outcome of many requests at one fault rate; half are streamed.

    Attributes:
        broken_unguarded: Answers with a broken call, straight from the faulty engine.
        wrong_unguarded: Answers whose calls are not those that the model meant, the broken ones and the errors among
            them, straight from the faulty engine.
        broken: Answers with a broken call at the gateway's client; not those with an error whose calls came live, since
            nothing said that they were whole.
        wrong: Answers whose calls are not those that the model meant (lost, doubled, changed) at the gateway's client.
        errors: Requests that got an error from the gateway.
        needless_reruns: Reruns where the faulty engine, asked directly, gives the right answer.
        extra_tokens: Completion tokens that the answers' usage tells beyond those of the clean engine, as a share.
    """

    fault_rate: float
    requests: int
    broken_unguarded: int
    wrong_unguarded: int
    broken: int
    wrong: int
    errors: int
    reruns: int
    needless_reruns: int
    extra_tokens: float


async def measure(rates: Sequence[float], requests: int, arguments: str = "held") -> list[Correctness]:
    """The same requests at every fault rate; quarantine is on where the guard asks it, which is with `auto`."""
    names = {f"{rate:g}": engine(rate) for rate in rates}
    with engines({"clean": engine(speculative=False), **names}) as urls:
        meant = await everything(urls["clean"], requests)
        found = []
        for rate in rates:
            unguarded = await everything(urls[f"{rate:g}"], requests)
            quarantine = {"enabled": arguments == "auto"}
            config = gateway_config(urls[f"{rate:g}"], urls["clean"], "heal", quarantine, arguments=arguments)
            with gateway(config) as (url, _):
                guarded = await everything(url, requests)
            found.append(_compare(rate, meant, unguarded, guarded, live=arguments != "held"))
    return found


async def everything(url: str, requests: int) -> list[Answer]:
    """Answers to requests 0, 1, 2, ..., a few in flight at a time."""
    answers: list[Answer] = [Answer() for _ in range(requests)]
    seeds = iter(range(requests))

    async def worker(session: aiohttp.ClientSession) -> None:
        for seed in seeds:
            answers[seed] = await ask(session, url, request("m", seed, stream=seed % 2 == 0))

    async with aiohttp.ClientSession() as session, asyncio.TaskGroup() as group:
        for _ in range(CONCURRENCY):
            group.create_task(worker(session))
    return answers


def _compare(
    rate: float, meant: Sequence[Answer], unguarded: Sequence[Answer], guarded: Sequence[Answer], *, live: bool
) -> Correctness:
    counted: Counter[str] = Counter()
    for right, raw, got in zip(meant, unguarded, guarded, strict=True):
        assert right.calls, "the clean engine was asked for calls"
        assert not any(map(is_broken, right.calls)), "the clean engine's calls are whole"
        as_meant = raw.calls == right.calls and raw.error is None
        counted["broken_unguarded"] += any(map(is_broken, raw.calls))
        counted["wrong_unguarded"] += not as_meant
        counted["broken"] += any(map(is_broken, got.calls)) and not (live and got.error is not None)
        counted["errors"] += got.error is not None
        counted["wrong"] += got.error is None and got.calls != right.calls
        counted["reruns"] += got.rerun
        counted["needless_reruns"] += got.rerun and as_meant
    names = ("broken_unguarded", "wrong_unguarded", "broken", "wrong", "errors", "reruns", "needless_reruns")
    tokens = sum(answer.tokens for answer in guarded) / sum(answer.tokens for answer in meant)
    return Correctness(rate, len(meant), **{name: counted[name] for name in names}, extra_tokens=tokens - 1)
