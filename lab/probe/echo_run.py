"""Sends the canary's requests at concurrency until the finding on every pool that answers is certain."""

from __future__ import annotations

import asyncio
import itertools
from collections import Counter
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

import httpx
from openai import AsyncOpenAI, OpenAIError

from lab.probe.echo import EchoCell
from lab.probe.plan import ProbePlan
from lab.probe.runner import answered, client_of
from lab.probe.trace import Trace
from serve.echo.prompt import NAMES, EchoPrompt
from serve.quarantine.sequential import SequentialTest

_MOST_ERRORS = 20  # in a row


@dataclass
class PoolEcho:
    """What one pool copied.

    Attributes:
        test: Of the rate of corrupted identifiers.
        requests: That it answered.
        lost: Answers without a call that has values: they say nothing of identifiers.
        changes: What became of those that are not as asked.
        tokens: Used, as reported.
    """

    test: SequentialTest = field(default_factory=SequentialTest)
    requests: int = 0
    lost: int = 0
    changes: Counter[str] = field(default_factory=Counter)
    tokens: int = 0

    def add(self, prompt: EchoPrompt, answer: dict[str, Any]) -> None:
        """Counts one answer. A value that is missing is no corrupted one: the model may have stopped early."""
        self.requests += 1
        self.tokens += int((answer.get("usage") or {}).get("total_tokens") or 0)
        changes = prompt.changes(answer)
        if changes is None:
            self.lost += 1
            return
        self.changes.update(changes)
        missing = changes.count("missing")
        self.test.add(NAMES - missing, len(changes) - missing)


@dataclass
class Echo:
    """A run of the canary.

    Attributes:
        pools: By name; an endpoint without pools has one of an empty name.
        errors: Requests without an answer.
        detail: Of the last error.
    """

    pools: dict[str, PoolEcho] = field(default_factory=dict)
    errors: int = 0
    detail: str = ""

    @property
    def certain(self) -> bool:
        """True once nothing more has to be asked: a pool is corrupt, or all that answer are sound."""
        findings = [pool.test.finding for pool in self.pools.values()]
        return "corrupt" in findings or (bool(findings) and set(findings) == {"sound"})


async def run_echo(plan: ProbePlan, cell: EchoCell, identifiers: int, advance: Callable[[int], None]) -> Echo:
    """Runs the canary until it is certain, or has asked for so many identifiers.

    Args:
        plan: The endpoint and how to ask it.
        cell: Makes the requests.
        identifiers: Most that are asked for.
        advance: Called with the number of identifiers after each answer.

    Raises:
        ConfigError: The environment variable for the API key is not set.
    """
    echo = Echo()
    numbers = itertools.islice(itertools.count(), -(-identifiers // NAMES))
    failed = 0

    async def worker(client: AsyncOpenAI) -> None:
        nonlocal failed
        for number in numbers:
            if echo.certain or failed >= _MOST_ERRORS:
                return
            try:
                answer, headers = await answered(client, plan.request(cell, number), Trace())
            except (OpenAIError, httpx.HTTPError) as error:
                failed += 1
                echo.errors += 1
                echo.detail = f"{type(error).__name__}: {error}"[:300]
                continue
            failed = 0
            pool = headers.get("x-specgate-pool") or ""
            echo.pools.setdefault(pool, PoolEcho()).add(EchoPrompt.of(number, cell.seed), answer)
            advance(NAMES)

    async with client_of(plan, plan.base_url) as client, asyncio.TaskGroup() as group:
        for _ in range(plan.concurrency):
            group.create_task(worker(client))
    return echo
