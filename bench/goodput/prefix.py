"""Placement of prompts on four replicas, beside a clairvoyant one: `python -m bench.goodput.prefix`.

The clairvoyant placement computes no text twice: a prompt finds all that any earlier one had in common with it.
"""

from collections.abc import Callable, Mapping, Sequence
from random import Random
from statistics import median
from typing import Any

from rich.console import Console
from rich.table import Table

from lab.simulation.arms import standard_only
from lab.simulation.figures import figures
from lab.simulation.request import PROSE, TOOLS, Drafter, SimRequest
from lab.simulation.simulation import Recorded, play
from lab.simulation.site import Site, default_config
from serve.config.compiled_policy import compile_for

ROUTINGS = ("balanced", "sticky", "prefix")
REPLICAS = 4
SEATS = 64


def one_system_prompt(rng: Random) -> list[SimRequest]:
    """200 conversations with one system prompt of 4,000 tokens."""
    return _conversations(rng, lambda: f"s{rng.randrange(200)}", 1600, 12.0, 4000)


def zipf_sessions(rng: Random) -> list[SimRequest]:
    """200 conversations of which a few are hot: the n-th has 1/n of the first one's turns."""
    weights = [1 / rank for rank in range(1, 201)]
    return _conversations(rng, lambda: f"s{rng.choices(range(200), weights)[0]}", 1600, 12.0, 0)


def agents(rng: Random) -> list[SimRequest]:
    """60 agents whose turns alternate between tools and prose, with growing contexts."""
    return _conversations(rng, lambda: f"s{rng.randrange(60)}", 1200, 8.0, 2000)


LOADS: Mapping[str, Callable[[Random], list[SimRequest]]] = {
    "one system prompt": one_system_prompt,
    "agents": agents,
    "Zipf sessions": zipf_sessions,
}


def _conversations(
    rng: Random, session: Callable[[], str], turns: int, rate_per_s: float, system: int
) -> list[SimRequest]:
    """Returns turns of conversations in order of time.

    Args:
        rng: Of sizes and times.
        session: Returns whose turn it is.
        turns: How many.
        rate_per_s: Turns per second.
        system: Tokens of the system prompt that all share.
    """
    context: dict[str, int] = {}
    counts: dict[str, int] = {}
    requests = []
    at_s = 0.0
    for _ in range(turns):
        at_s += rng.expovariate(rate_per_s)
        name = session()
        counts[name] = counts.get(name, 0) + 1
        prompt = context.get(name, system) + rng.randint(100, 800)
        if prompt > 16_000:  # a new task
            context.pop(name)
            counts[name] += 1000
            prompt = system + rng.randint(100, 800)
        key = f"{name}/{counts[name] // 1000}"
        answer = rng.randint(60, 300)
        kind = TOOLS if counts[name] % 2 else PROSE
        requests.append(SimRequest(at_s, key, kind, prompt, answer, ("system", system) if system else ("", 0)))
        context[name] = prompt + answer
    return requests


def clairvoyant(requests: Sequence[SimRequest]) -> float:
    """Returns the share of prompt tokens that earlier prompts and answers had already."""
    seen: dict[object, int] = {}
    hits = 0
    for request in requests:
        for part in request.prompt:
            hits += min(part.tokens, seen.get(part.key, 0))
        for part in (*request.prompt, request.answer):
            seen[part.key] = max(part.tokens, seen.get(part.key, 0))
    return hits / sum(request.prompt_tokens for request in requests)


def measured(load: str, routing: str, seed: int) -> dict[str, Any]:
    """Returns hit rate, its share of the clairvoyant one's, and the times to the first token.

    Args:
        load: Name of the load.
        routing: As in a pool's configuration.
        seed: Of all random numbers.
    """
    requests = LOADS[load](Random(seed))
    config = default_config(REPLICAS, SEATS, routing=routing)
    outcome = play(Recorded(requests), Site(config, _POLICY), Drafter(), standard_only, seed)
    row = figures(outcome, outcome.tokens_per_s)
    # Only the standard pool has served, so that all prompts met the same four replicas.
    return {**row, "of_clairvoyant": row["prefix_hit_rate"] / clairvoyant(LOADS[load](Random(seed)))}


_POLICY = compile_for(default_config())


def main() -> None:
    """Prints medians over five seeds."""
    table = Table("load", "routing", "hit rate", "of the clairvoyant", "TTFT p50 ms", "p99 ms")
    for load in LOADS:
        for routing in ROUTINGS:
            rows = [measured(load, routing, seed) for seed in range(1, 6)]
            cells = (
                f"{median(row['prefix_hit_rate'] for row in rows):.3f}",
                f"{median(row['of_clairvoyant'] for row in rows):.3f}",
                f"{median(row['ttft_ms']['p50'] for row in rows):,.0f}",
                f"{median(row['ttft_ms']['p99'] for row in rows):,.0f}",
            )
            table.add_row(load, routing, *cells)
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
