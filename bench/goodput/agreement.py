"""The simulated engine that serves HTTP beside the discrete-event simulation: `python -m bench.goodput.agreement`.

The same requests go to both. The first one runs as it is deployed, but without sockets and in virtual time: its
answers, its steps and its queue are real. Both must agree on throughput and on the time per token, within 5 %.
"""

import asyncio
from collections.abc import Sequence
from random import Random
from statistics import median
from typing import Any, NamedTuple

from rich.console import Console
from rich.table import Table

from bench.goodput.virtual_client import Answer, ask
from lab.sim import SimSettings, build_sim_app
from lab.sim.economics import Economics
from lab.sim.prompt import prompt_parts
from lab.simulation.engine import SimEngine
from lab.simulation.request import ACCEPTANCE, JSON, PROSE, TOOLS, Drafter, SimRequest
from lab.simulation.simulation import Recorded
from lab.simulation.virtual_time import run_in_virtual_time

TOLERANCE = 0.05
SEATS = 64
REQUESTS = 400
DRAFTS = (0, 1, 3)
RATES_PER_S = (2.0, 10.0, 25.0, 60.0)  # of requests: from an idle engine to one with a long queue
_TOOL = {
    "type": "function",
    "function": {"name": "search", "parameters": {"type": "object", "properties": {"q": {"type": "string"}}}},
}


class Figures(NamedTuple):
    """What both are compared by."""

    tokens_per_s: float
    per_token_ms: float
    first_token_ms: float


class _Times(NamedTuple):
    """One answer."""

    kind: str
    at_s: float
    first_s: float
    end_s: float
    tokens: int


class Row(NamedTuple):
    """One engine under one load, served and simulated."""

    drafts: int
    rate_per_s: float
    served: Figures
    simulated: Figures

    @property
    def worst(self) -> float:
        """The largest difference, in throughput or time per token."""
        return max(abs(self.simulated[place] / self.served[place] - 1.0) for place in (0, 1))


def measured(drafts: int, rate_per_s: float, seed: int, requests: int = REQUESTS) -> Row:
    """Serves and simulates one load.

    Args:
        drafts: Draft length of the engine.
        rate_per_s: Requests per second.
        seed: Of arrivals and sizes.
        requests: How many.
    """
    rng = Random(seed)
    arrivals: list[tuple[float, dict[str, Any]]] = []
    at_s = 0.0
    for number in range(requests):
        at_s += rng.expovariate(rate_per_s)
        arrivals.append((at_s, _body(number, rng)))
    answers = run_in_virtual_time(_served(drafts, arrivals))
    simulated = _simulated(
        drafts, [(at_s, body, answer) for (at_s, body), answer in zip(arrivals, answers, strict=True)]
    )
    return Row(
        drafts,
        rate_per_s,
        _figures(
            [_Times(one.kind, *answered) for one, answered in zip(simulated, _answered(arrivals, answers), strict=True)]
        ),
        _figures([_Times(one.kind, one.at_s, one.first_s, one.end_s, one.output_tokens) for one in simulated]),
    )


def _answered(
    arrivals: Sequence[tuple[float, dict[str, Any]]], answers: Sequence[Answer]
) -> list[tuple[float, float, float, int]]:
    return [(at_s, one.first_s, one.end_s, one.tokens) for (at_s, _), one in zip(arrivals, answers, strict=True)]


def _body(number: int, rng: Random) -> dict[str, Any]:
    system = {"role": "system", "content": f"You are agent {rng.randrange(4)}. " + "Be exact. " * 300}
    user = {"role": "user", "content": f"Task {number}: " + "look again " * rng.randint(20, 400)}
    body: dict[str, Any] = {"messages": [system, user]}
    kind = rng.choice((TOOLS, PROSE, PROSE, JSON))
    if kind == TOOLS:
        body |= {"tools": [_TOOL], "tool_choice": "required"}
    elif kind == JSON:
        body["response_format"] = {"type": "json_object"}
    return body


async def _served(drafts: int, arrivals: Sequence[tuple[float, dict[str, Any]]]) -> list[Answer]:
    acceptance = {**{kind: list(chances) for kind, chances in ACCEPTANCE.items()}, "thinking": [0.7]}
    settings = {
        "grammar": "hermes",
        "economics": {},
        "max_num_seqs": SEATS,
        "num_speculative_tokens": drafts,
        "acceptance": acceptance,
        "content_tokens": [100, 500],
    }
    app = build_sim_app(SimSettings.from_mapping(settings))

    async def later(at_s: float, body: dict[str, Any]) -> Answer:
        await asyncio.sleep(at_s)
        return await ask(app, body)

    return await asyncio.gather(*(later(at_s, body) for at_s, body in arrivals))


def _simulated(drafts: int, sent: Sequence[tuple[float, dict[str, Any], Answer]]) -> list[SimRequest]:
    drafter = Drafter()
    engine = SimEngine(Economics(), drafts, SEATS)
    requests = [_as_simulated(at_s, body, answer) for at_s, body, answer in sent]
    source = Recorded(requests)
    ended: list[SimRequest] = []
    while len(ended) < len(requests):
        if source.next_s() <= engine.next_end_s:
            now_s = source.next_s()
            for request in source.due(now_s):
                request.length = drafter.length(request.kind, drafts, now_s)
                engine.submit(request, now_s)
        else:
            ended.append(engine.finish(engine.next_end_s))
    return requests


def _as_simulated(at_s: float, body: dict[str, Any], answer: Answer) -> SimRequest:
    kind = TOOLS if "tools" in body else JSON if "response_format" in body else PROSE
    *shared, own = prompt_parts(body)
    tokens = sum(part.tokens for part in shared)
    return SimRequest(at_s, f"{own.key}", kind, tokens + own.tokens, answer.tokens, (f"{shared[-1].key}", tokens))


def _figures(times: Sequence[_Times]) -> Figures:
    """Returns the figures; times of tokens are those of prose, since a call or a document begins with hidden marks."""
    duration_s = max(one.end_s for one in times) - times[0].at_s
    prose = [one for one in times if one.kind == PROSE]
    return Figures(
        sum(one.tokens for one in times) / duration_s,
        median((one.end_s - one.first_s) / (one.tokens - 1) for one in prose) * 1e3,
        median(one.first_s - one.at_s for one in prose) * 1e3,
    )


def main() -> None:
    """Prints the table; exit code 1 if the two disagree."""
    rows = [measured(drafts, rate, seed) for seed, drafts in enumerate(DRAFTS, 1) for rate in RATES_PER_S]
    table = Table(
        "drafts", "requests/s", "tokens/s", "simulated", "ms per token", "simulated", "TTFT ms", "simulated", "worst"
    )
    for row in rows:
        pairs = zip(row.served, row.simulated, strict=True)
        cells = [f"{value:,.1f}" for pair in pairs for value in pair]
        table.add_row(f"{row.drafts}", f"{row.rate_per_s:g}", *cells, f"{row.worst:.1%}")
    Console(width=130).print(table)
    worst = max(row.worst for row in rows)
    Console().print(f"throughput and time per token differ by at most {worst:.1%}; allowed are {TOLERANCE:.0%}")
    raise SystemExit(worst > TOLERANCE)


if __name__ == "__main__":
    main()
