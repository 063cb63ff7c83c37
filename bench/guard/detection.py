"""Measures how long a broken pool serves before it is quarantined, and how long until a cured one returns."""

import asyncio
import time
from dataclasses import dataclass
from typing import Any

import aiohttp

from bench.guard.correctness import CONCURRENCY
from bench.guard.rig import Gateway, engine, engines, gateway, gateway_config
from bench.guard.traffic import ask, is_broken, request

REFERENCE_SHARE = 0.1  # five times the default: a fifth of the requests


@dataclass(frozen=True)
class Detection:
    """One pool from its first fault to quarantine and, if it was cured then, to its return.

    Attributes:
        out_after: Requests until the gateway said that the pool is out; None if it did not within `requests`.
        out_s: The same in seconds, at the load of the benchmark.
        back_after: Requests from the cure until the pool was back; None if that was not tried or took too long.
        broken: Answers with a broken call at the client, in all.
    """

    fault_rate: float
    fault_seed: int
    requests: int
    out_after: int | None
    out_s: float | None
    back_after: int | None
    broken: int


async def measure(rate: float, seed: int, most: int, cure: bool = False) -> Detection:
    """A fresh gateway before a pool that breaks from the first request on.

    Args:
        rate: Of faults.
        seed: Chooses the requests that meet one.
        most: Requests after which the run is given up.
        cure: Whether the pool is cured once it is out, and its return awaited.
    """
    settings = {"fast": engine(rate, fault_seed=seed), "safe": engine(speculative=False)}
    with (
        engines(settings, {"fast": engine()}) as urls,
        gateway(gateway_config(urls["fast"], urls["safe"], "heal", {"reference_share": REFERENCE_SHARE})) as ports,
    ):
        async with aiohttp.ClientSession() as session:
            started = time.perf_counter()
            out, broken = await _until(session, ports, "quarantined", most)
            seconds = time.perf_counter() - started
            back = None
            if cure and out is not None:
                async with session.post(f"{urls['fast']}/cure"):
                    back, more = await _until(session, ports, "open", 20_000)
                    broken += more
    return Detection(rate, seed, most, out, seconds if out is not None else None, back, broken)


async def _until(session: aiohttp.ClientSession, ports: Gateway, status: str, most: int) -> tuple[int | None, int]:
    """Send requests until the speculative pool has the status; how many that took, and how many were broken."""
    sent, broken = 0, 0
    reached = asyncio.Event()

    async def worker() -> None:
        nonlocal sent, broken
        while sent < most and not reached.is_set():
            sent += 1
            answer = await ask(session, ports.data, request("m", sent, stream=sent % 2 == 0))
            broken += any(map(is_broken, answer.calls))

    async def watch() -> None:
        while sent < most:
            async with session.get(f"{ports.operators}/admin/v1/quarantine") as response:
                if status in _statuses((await response.json())["data"]):
                    reached.set()
                    return
            await asyncio.sleep(0.05)

    async with asyncio.TaskGroup() as group:
        group.create_task(watch())
        for _ in range(CONCURRENCY):
            group.create_task(worker())
    return (sent if reached.is_set() else None), broken


def _statuses(cells: list[dict[str, Any]]) -> set[str]:
    return {cell["status"] for cell in cells if cell["pool"] == "speculative"}
