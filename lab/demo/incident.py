"""The incident that started this project, on simulated engines: tool calls that end inside a string.

The same fifty requests go straight to an engine whose drafter cuts every second call, and through a gateway replica
that has this engine and one without a drafter. Both run in this process; nothing needs Ray or a model.
"""

import asyncio
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from dataclasses import dataclass
from typing import Any

import openai

from lab.probe.check import check
from lab.probe.grid import PROMPTS, TOOLS
from lab.sim import SimSettings, build_sim_app
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiApp
from serve.http1.listener import Listener

REQUESTS = 50
_MODEL = "kimi"
_FAULTY = SimSettings(model=_MODEL, num_speculative_tokens=3, faults={"truncated_string": 0.5})
_STANDARD = SimSettings(model=_MODEL)


@dataclass(frozen=True)
class Arm:
    """The outcome of one client's requests.

    Attributes:
        broken: Answers with a call that an agent can't act on.
        healed: Answers that the gateway asked for again.
        errors: Requests that got no answer.
        tokens: Completion tokens that were generated.
    """

    broken: int
    healed: int
    errors: int
    tokens: int


@dataclass(frozen=True)
class Incident:
    """The fifty requests straight to the engine, and through specgate."""

    straight: Arm
    guarded: Arm

    @property
    def healed(self) -> bool:
        """True if the fault was there and no client of specgate saw it."""
        return self.straight.broken > 0 and not self.guarded.broken and not self.guarded.errors

    def lines(self) -> list[str]:
        """Returns what happened, a line each."""
        extra = self.guarded.tokens / self.straight.tokens - 1
        return [
            "The field report's incident, on simulated engines: a drafter cuts every second tool call inside a string.",
            f"  straight to the engine: {self.straight.broken} of {REQUESTS} answers with a broken call",
            f"  through specgate:       {self.guarded.broken} of {REQUESTS}; {self.guarded.healed} were broken, seen "
            f"in time and asked for again, for {extra:.0%} more tokens",
        ]


async def run() -> Incident:
    """Sends the requests straight to the engine, then through specgate."""
    logger = logging.getLogger("ray.serve")
    level = logger.level
    logger.setLevel(logging.ERROR)  # the guard's warnings are what is shown here
    try:
        async with _listening(build_sim_app(_FAULTY)) as faulty, _listening(build_sim_app(_STANDARD)) as standard:
            straight = await _ask_all(faulty)
            async with _listening(GatewayReplica(_config(faulty, standard), []).app()) as gateway:
                return Incident(straight, await _ask_all(gateway))
    finally:
        logger.setLevel(level)


@asynccontextmanager
async def _listening(app: AsgiApp) -> AsyncIterator[str]:
    listener = Listener("127.0.0.1")
    await listener.start(app)
    try:
        yield f"http://127.0.0.1:{listener.port}"
    finally:
        await listener.stop()


def _config(faulty: str, standard: str) -> dict[str, Any]:
    pools = {
        # Nobody has published anything about this drafter, so only the guard stands between it and the client.
        "speculative": {"kind": "remote", "url": faulty, "facts": {"engine": "sim", "method": "sim"}},
        "standard": {"kind": "remote", "url": standard, "facts": {"engine": "sim", "method": "none"}},
    }
    model = {"family": "sim", "grammar": "kimi_k2", "guard": {"mode": "heal"}, "pools": pools}
    return {"models": {_MODEL: model}, "quarantine": {"enabled": False}}


async def _ask_all(url: str) -> Arm:
    async with openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="none", max_retries=0) as client:
        answers = await asyncio.gather(*(_ask(client, seed) for seed in range(REQUESTS)))
    return Arm(
        broken=sum(answer.get("outcome") not in ("clean", "error") for answer in answers),
        healed=sum(bool(answer.get("rerun")) for answer in answers),
        errors=sum(answer.get("outcome") == "error" for answer in answers),
        tokens=sum(int(answer.get("tokens", 0)) for answer in answers),
    )


async def _ask(client: openai.AsyncOpenAI, seed: int) -> Mapping[str, Any]:
    request: dict[str, Any] = {
        "model": _MODEL,
        "messages": [{"role": "user", "content": PROMPTS["chinese"]}],
        "tools": TOOLS,
        "tool_choice": "required",
        "seed": seed,
    }
    try:
        raw = await client.chat.completions.with_raw_response.create(**request)
    except openai.APIError as error:
        return {"outcome": "error", "detail": str(error)}
    answer = raw.parse()
    tokens = answer.usage.completion_tokens if answer.usage else 0
    return {**check(request, answer.model_dump()), "rerun": "x-specgate-rerun" in raw.headers, "tokens": tokens}
