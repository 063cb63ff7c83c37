"""Real agents' prompts on four replicas: `python -m bench.goodput.traces [FILE]`.

The traces are Claude Code's, with token counts, hashes of blocks of the prompts, sub-agents and times, and not a word.
Each is a session; they begin at random times, and play as they were recorded, faster or slower (`--speed`). A replica
computes prompts one after the other, keeps blocks in an LRU, and writes answers beside one another. Compared are ways
to choose a replica, up to a clairvoyant one that knows what each replica holds and when it will be free.
"""

from __future__ import annotations

import argparse
import gzip
import heapq
import json
from collections import OrderedDict, deque
from collections.abc import Callable, Iterator, Mapping, Sequence
from itertools import count, takewhile
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from typing import Any, NamedTuple
from zlib import crc32

from rich.console import Console
from rich.table import Table

from bench.schemas import SHARED
from serve.routing.prefix_index import PrefixIndex

TRACES = SHARED / "suites" / "claude_code_traces.jsonl.gz"
BLOCK_TOKENS = 256  # as the gateway's index has them: four blocks of the traces
_HASHED_TOKENS = 64
_LONGEST_BLOCKS = 512  # that the gateway's index looks at
REPLICAS = 4
# An 8-GPU replica of a large model: computed and written tokens per second, and KV memory in tokens.
PREFILL_PER_S, DECODE_PER_S, KEPT_TOKENS = 20_000.0, 60.0, 2_000_000


class Turn(NamedTuple):
    """One request of a session.

    Attributes:
        at_s: When it comes.
        session: Whose; sub-agents have their session's, as agents send one cache key for all.
        tokens: Of the prompt.
        output: Tokens of the answer.
        blocks: Of the prompt, each standing for all up to its end.
    """

    at_s: float
    session: str
    tokens: int
    output: int
    blocks: tuple[int, ...]


def turns_of(trace: Mapping[str, Any], begin_s: float, speed: float) -> Iterator[Turn]:
    """Yields the requests of one trace, its sub-agents' among them.

    Args:
        trace: A line of the file.
        begin_s: When the session begins.
        speed: How many times faster than recorded it goes.
    """
    session = trace["id"]
    for request in trace["requests"]:
        nested = request.get("requests")
        parts = [(request["t"], each) for each in nested] if nested is not None else [(0.0, request)]
        for offset_s, each in parts:
            at_s = begin_s + (offset_s + each["t"]) / speed
            yield Turn(at_s, session, each["in"], each["out"], _blocks(session, each.get("hash_runs") or ()))


def _blocks(session: str, runs: Sequence[Sequence[int]]) -> tuple[int, ...]:
    hashes = [first + place for first, length in runs for place in range(length)]
    step = BLOCK_TOKENS // _HASHED_TOKENS
    return tuple(hash((session, each)) for each in hashes[step - 1 :: step])


def arrivals(path: Path, sessions: int, window_s: float, speed: float, seed: int) -> list[Turn]:
    """Returns the requests of many sessions in order of time.

    Args:
        path: Of the traces.
        sessions: How many; a trace is played again, as another session, once all are.
        window_s: Time in which they begin.
        speed: As of `turns_of`.
        seed: Of the beginnings.
    """
    chance = Random(seed)
    with gzip.open(path, "rt") as lines:
        traces = [json.loads(line) for line in lines]
    turns: list[Turn] = []
    for number in range(sessions):
        trace = traces[number % len(traces)]
        renamed = {**trace, "id": f"{trace['id']}/{number // len(traces)}"}
        turns += turns_of(renamed, chance.uniform(0, window_s), speed)
    return sorted(turns)


class TraceReplica:
    """One replica in virtual time.

    Attributes:
        requests: That it has, up to the last token.
        free_s: When it has computed all prompts that wait.
        computed: Tokens of prompts so far.
        busy_s: Time that it has computed for.
    """

    def __init__(self) -> None:
        self.requests = 0
        self.free_s = 0.0
        self.computed = 0
        self.busy_s = 0.0
        self._kept: OrderedDict[int, None] = OrderedDict()

    def held(self, turn: Turn) -> int:
        """Returns how many tokens of a prompt it holds."""
        return min(turn.tokens, BLOCK_TOKENS * sum(1 for _ in takewhile(self._kept.__contains__, turn.blocks)))

    def first_token_s(self, turn: Turn) -> float:
        """Returns when a request's first token would come."""
        return max(self.free_s, turn.at_s) + (turn.tokens - self.held(turn)) / PREFILL_PER_S

    def submit(self, turn: Turn) -> float:
        """Takes a request; returns when its first token comes."""
        first_s = self.first_token_s(turn)
        missing = turn.tokens - self.held(turn)
        self.computed += missing
        self.busy_s += missing / PREFILL_PER_S
        self.free_s = first_s
        self.requests += 1
        for block in reversed(turn.blocks):
            self._kept[block] = None
            self._kept.move_to_end(block)
        while len(self._kept) > KEPT_TOKENS // BLOCK_TOKENS:
            self._kept.popitem(last=False)
        return first_s


Choice = Callable[[Turn, Sequence[TraceReplica]], int]


def round_robin() -> Choice:
    """Returns a choice that takes one after the other."""
    numbers = count()
    return lambda turn, replicas: next(numbers) % len(replicas)


def consistent_hash() -> Choice:
    """Returns a choice by the session alone."""
    return lambda turn, replicas: crc32(turn.session.encode()) % len(replicas)


def cache_aware() -> Choice:
    """Returns the choice of gateways with a prefix tree: the longest match, unless the replicas differ much in load.

    The thresholds are those that such a router has by default: half of a prompt, 64 requests, 1.5 times as many.
    """
    index = PrefixIndex(kept_blocks=KEPT_TOKENS // BLOCK_TOKENS)

    def choose(turn: Turn, replicas: Sequence[TraceReplica]) -> int:
        loads = [replica.requests for replica in replicas]
        blocks = turn.blocks[:_LONGEST_BLOCKS]
        idlest = loads.index(min(loads))
        if max(loads) - min(loads) > 64 and max(loads) > 1.5 * min(loads):
            chosen = idlest
        else:
            known = [index.known(str(number), blocks) for number in range(len(replicas))]
            chosen = known.index(max(known)) if max(known) > len(blocks) / 2 else idlest
        index.sent(str(chosen), blocks)
        return chosen

    return choose


def ours() -> Choice:
    """Returns the gateway's own choice, `routing: prefix`."""
    index = PrefixIndex()

    def choose(turn: Turn, replicas: Sequence[TraceReplica]) -> int:
        blocks = turn.blocks[:_LONGEST_BLOCKS]
        chosen = index.choose(blocks, {str(number): replica.requests for number, replica in enumerate(replicas)})
        assert chosen is not None
        index.sent(chosen, blocks)
        return int(chosen)

    return choose


def clairvoyant() -> Choice:
    """Returns the choice that knows when the first token would come from each replica."""
    return lambda turn, replicas: min(range(len(replicas)), key=lambda number: replicas[number].first_token_s(turn))


CHOICES: Mapping[str, Callable[[], Choice]] = {
    "round robin": round_robin,
    "consistent hash": consistent_hash,
    "cache-aware": cache_aware,
    "prefix (ours)": ours,
    "clairvoyant": clairvoyant,
}


def played(turns: Sequence[Turn], choose: Choice, replicas: int = REPLICAS) -> dict[str, float]:
    """Plays requests; returns the hit rate, times to the first token, and the busiest replica's share of the mean."""
    engines = [TraceReplica() for _ in range(replicas)]
    ending: list[tuple[float, int]] = []
    waits: deque[float] = deque()
    for turn in turns:
        while ending and ending[0][0] <= turn.at_s:
            engines[heapq.heappop(ending)[1]].requests -= 1
        chosen = choose(turn, engines)
        first_s = engines[chosen].submit(turn)
        waits.append(first_s - turn.at_s)
        heapq.heappush(ending, (first_s + turn.output / DECODE_PER_S, chosen))
    cuts = quantiles(waits, n=100)
    tokens = sum(turn.tokens for turn in turns)
    busy = [engine.busy_s for engine in engines]
    return {
        "hit_rate": 1 - sum(engine.computed for engine in engines) / tokens,
        "ttft_p50_s": cuts[49],
        "ttft_p99_s": cuts[98],
        "busiest": max(busy) / max(mean(busy), 1e-9),
        "load": mean(busy) / max(turns[-1].at_s - turns[0].at_s, 1e-9),
    }


def main() -> None:
    """Prints a line for each choice."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=TRACES)
    parser.add_argument("--sessions", type=int, default=58)
    parser.add_argument("--window-s", type=float, default=1800.0, help="in which sessions begin")
    parser.add_argument("--speed", type=float, default=4.0, help="times faster than recorded")
    parser.add_argument("--seeds", type=int, default=3)
    options = parser.parse_args()
    table = Table("choice", "hit rate", "of the clairvoyant", "TTFT p50 s", "p99 s", "busiest / mean", "load")
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in CHOICES}
    for seed in range(options.seeds):
        turns = arrivals(options.file, options.sessions, options.window_s, options.speed, seed)
        for name, choice in CHOICES.items():
            rows[name].append(played(turns, choice()))
    best = mean(row["hit_rate"] for row in rows["clairvoyant"])
    for name, own in rows.items():
        figures = {key: mean(row[key] for row in own) for key in own[0]}
        table.add_row(
            name, f"{figures['hit_rate']:.3f}", f"{figures['hit_rate'] / best:.3f}", f"{figures['ttft_p50_s']:.2f}",
            f"{figures['ttft_p99_s']:.2f}", f"{figures['busiest']:.2f}", f"{figures['load']:.0%}",
        )  # fmt: skip
    Console(width=110).print(table)


if __name__ == "__main__":
    main()
