"""Real prompts on some replicas: `python -m bench.goodput.traces [FILE]`.

The traces are Claude Code's, with token counts, hashes of blocks of the prompts, sub-agents and times, and not a word.
Each is a session; they begin at random times, and play as they were recorded, faster or slower (`--speed`). FILE may
also be one of Mooncake's, whose lines are requests of many users in order of time. A replica computes prompts one after
the other, keeps blocks in an LRU, and writes answers beside one another. Compared are ways to choose a replica, up to a
clairvoyant one that knows what each replica holds and when it will be free.
"""

from __future__ import annotations

import argparse
import heapq
import json
import sys
from collections import OrderedDict, deque
from collections.abc import Callable, Iterable, Mapping, Sequence
from functools import partial
from itertools import count, groupby, takewhile
from pathlib import Path
from random import Random
from statistics import mean, quantiles
from typing import NamedTuple
from zlib import crc32

from rich.console import Console
from rich.table import Table

from bench.schemas import SHARED
from lab.simulation.traces import Trace, Turn, arrivals, read_trace
from lab.simulation.traffic import lines_of
from serve.load.shared_load import PERIOD_S, added
from serve.routing.prefix_placement import BLOCK_TOKENS, PrefixIndex, PrefixPlacement

TRACES = SHARED / "suites" / "claude_code_traces.jsonl.gz"
_LONGEST_BLOCKS = 2048  # that the gateway's index looks at
REPLICAS = 4
# An 8-GPU replica of a large model: computed and written tokens per second, and KV memory in tokens.
PREFILL_PER_S, DECODE_PER_S, KEPT_TOKENS = 20_000.0, 60.0, 2_000_000
_MOONCAKES_BLOCK = 512  # tokens


class TraceReplica:
    """One replica in virtual time.

    Attributes:
        requests: That it has, up to the last token.
        free_s: When it has computed all prompts that wait.
        computed: Tokens of prompts so far.
        busy_s: Time that it has computed for.
    """

    def __init__(self, kept_tokens: int) -> None:
        self._kept_blocks = kept_tokens // BLOCK_TOKENS
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
        while len(self._kept) > self._kept_blocks:
            self._kept.popitem(last=False)
        return first_s


Choice = Callable[[Turn, Sequence[TraceReplica]], int]


def round_robin(kept_tokens: int) -> Choice:
    """Returns a choice that takes one after the other."""
    numbers = count()
    return lambda turn, replicas: next(numbers) % len(replicas)


def consistent_hash(kept_tokens: int) -> Choice:
    """Returns a choice by the session alone."""
    return lambda turn, replicas: crc32(turn.session.encode()) % len(replicas)


def cache_aware(kept_tokens: int) -> Choice:
    """Returns the choice of gateways with a prefix tree: the longest match, unless the replicas differ much in load.

    The thresholds are those that such a router has by default: half of a prompt, 64 requests, 1.5 times as many.
    """
    index = PrefixIndex(lambda _: kept_tokens // BLOCK_TOKENS)

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


class Ours:
    """The gateway's own choice, `routing: prefix`; it is told when answers begin and end.

    Of several gateways, each request comes to one by chance. Every second they tell each other what they have sent, and
    what replicas have to do for them, or never.
    """

    def __init__(self, kept_tokens: int, gateways: int = 1, *, silent: bool = False) -> None:
        self._slots: dict[str, int] = {}
        self._gateways = [PrefixPlacement(lambda: self._slots, lambda _: kept_tokens) for _ in range(gateways)]
        self._chance = Random(1)
        self._exchange_s = sys.maxsize if silent else 0.0
        self._events: list[tuple[float, int, Callable[[], object]]] = []
        self._numbers = count()

    def __call__(self, turn: Turn, replicas: Sequence[TraceReplica]) -> int:
        while self._events and self._events[0][0] <= turn.at_s:
            heapq.heappop(self._events)[2]()
        self._slots = {str(number): sys.maxsize for number in range(len(replicas))}
        if turn.at_s >= self._exchange_s:
            self._exchange(turn.at_s + PERIOD_S)
        blocks = [block & 0xFFFFFFFF for block in turn.blocks[:_LONGEST_BLOCKS]]
        placement = self._chance.choice(self._gateways)
        url = placement.choose(blocks)
        placed, first_s = placement.at(url, blocks), replicas[int(url)].first_token_s(turn)
        placed.__enter__()
        self._at(first_s, placed.begun)
        self._at(first_s + turn.output / DECODE_PER_S, placed.__exit__)
        return int(url)

    def _exchange(self, next_s: float) -> None:
        self._exchange_s = next_s
        told = [(gateway, gateway.report(), gateway.doing()) for gateway in self._gateways]
        for gateway in self._gateways:
            others = [(sent, doing) for sender, sent, doing in told if sender is not gateway]
            gateway.merge([prompt for sent, _ in others for prompt in sent], added(doing for _, doing in others))

    def _at(self, time_s: float, do: Callable[[], object]) -> None:
        heapq.heappush(self._events, (time_s, next(self._numbers), do))


def clairvoyant(kept_tokens: int) -> Choice:
    """Returns the choice that knows when the first token would come from each replica."""
    return lambda turn, replicas: min(range(len(replicas)), key=lambda number: replicas[number].first_token_s(turn))


CHOICES: Mapping[str, Callable[[int], Choice]] = {  # by how many tokens of prompts a replica keeps
    "round robin": round_robin,
    "consistent hash": consistent_hash,
    "cache-aware": cache_aware,
    "prefix (ours)": Ours,
    "of 2 gateways": partial(Ours, gateways=2),
    "of 4 gateways": partial(Ours, gateways=4),
    "of 2, silent": partial(Ours, gateways=2, silent=True),
    "clairvoyant": clairvoyant,
}


def most(turns: Sequence[Turn]) -> float:
    """Returns the hit rate where nothing is computed twice: one replica that forgets nothing."""
    seen: set[int] = set()
    hits = 0
    for turn in turns:
        hits += min(turn.tokens, BLOCK_TOKENS * sum(1 for _ in takewhile(seen.__contains__, turn.blocks)))
        seen.update(turn.blocks)
    return hits / sum(turn.tokens for turn in turns)


def mooncakes(lines: Iterable[bytes], speed: float) -> list[Turn]:
    """Returns the requests of one of Mooncake's traces, whose hashes stand for 512 tokens and all before them.

    A conversation is told by its first two blocks, for want of anything else. Some of its traces have the times of
    three seconds as one, which are spread up to the next.
    """
    per_block = _MOONCAKES_BLOCK // BLOCK_TOKENS
    turns = [
        Turn(
            one["timestamp"] / 1000 / speed, str(one["hash_ids"][:2]), one["input_length"], one["output_length"],
            tuple(block * per_block + part for block in one["hash_ids"] for part in range(per_block)),
        )
        for one in map(json.loads, lines)
    ]  # fmt: skip
    groups = [list(group) for _, group in groupby(turns, key=lambda turn: turn.at_s)]
    ends = [*(group[0].at_s for group in groups[1:]), groups[-1][0].at_s]
    return [
        turn._replace(at_s=turn.at_s + (end - turn.at_s) * place / len(group))
        for group, end in zip(groups, ends, strict=True)
        for place, turn in enumerate(group)
    ]


def played(
    turns: Sequence[Turn],
    choice: Callable[[int], Choice],
    replicas: int = REPLICAS,
    kept_tokens: int = KEPT_TOKENS,
) -> dict[str, float]:
    """Plays requests; returns the hit rate, times to the first token, and the busiest replica's share of the mean."""
    choose = choice(kept_tokens)
    engines = [TraceReplica(kept_tokens) for _ in range(replicas)]
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


class Cluster(NamedTuple):
    """Replicas, and how many tokens of prompts each keeps; the sessions of agents, and how fast requests come."""

    replicas: int
    kept_tokens: int
    sessions: int
    speed: float


def cluster(number: int) -> Cluster:
    """Returns the cluster of a number, drawn by chance, so that the routing is judged by others than it is tuned with.

    Its speed is that of agents, who are few; Mooncake's users are many, and come an eighth as fast.
    """
    chance = Random(number)
    return Cluster(
        chance.choice((2, 4)),
        chance.choice((300_000, 1_000_000, 2_000_000, 6_000_000, 20_000_000)),
        chance.choice((58, 116, 174)),
        chance.choice((1.0, 2.0, 4.0, 8.0)),
    )


def compare(file: Path, numbers: Iterable[int], window_s: float) -> Table:
    """Returns a line for each cluster: one gateway and four, beside the clairvoyant choice."""
    names = ("prefix (ours)", "of 4 gateways", "clairvoyant")
    table = Table("cluster", "hits, 1", "4", "p99, 1", "4", "busiest, 1", "4", "load", title=file.name)
    lines = [line for line in lines_of(file) if line.strip()]
    for number in numbers:
        drawn = cluster(number)
        if b"hash_ids" in lines[0]:
            turns = mooncakes(lines, drawn.speed / 8)
        else:
            turns = arrivals([*map(read_trace, lines)], drawn.sessions, window_s, drawn.speed, number)
        *ours, best = (played(turns, CHOICES[name], drawn.replicas, drawn.kept_tokens) for name in names)
        table.add_row(
            f"{number}: {drawn.replicas} x {drawn.kept_tokens:,}",
            *(f"{own['hit_rate'] / best['hit_rate']:.3f}" for own in ours),
            *(f"{own['ttft_p99_s'] / best['ttft_p99_s']:.2f}" for own in ours),
            *(f"{own['busiest']:.2f}" for own in ours), f"{best['load']:.0%}",
        )  # fmt: skip
    return table


def main() -> None:
    """Prints a line for each choice, or for each cluster."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("file", nargs="?", type=Path, default=TRACES)
    parser.add_argument("--sessions", type=int, default=58)
    parser.add_argument("--window-s", type=float, default=1800.0, help="in which sessions begin")
    parser.add_argument("--speed", type=float, default=4.0, help="times faster than recorded")
    parser.add_argument("--seeds", type=int, default=3)
    parser.add_argument("--replicas", type=int, default=REPLICAS)
    parser.add_argument("--kept-tokens", type=int, default=KEPT_TOKENS, help="of prompts, by each replica")
    parser.add_argument("--half", type=int, choices=(0, 1), help="every other session; the routing was tuned with 0")
    parser.add_argument("--clusters", type=int, nargs=2, metavar=("FIRST", "LAST"), help="a line for each of these")
    options = parser.parse_args()
    if options.clusters:
        first, last = options.clusters
        Console(width=120).print(compare(options.file, range(first, last + 1), options.window_s))
        return
    lines = [line for line in lines_of(options.file) if line.strip()]
    if b"hash_ids" in lines[0]:
        runs = [mooncakes(lines, options.speed)]
    else:
        traces: list[Trace] = [read_trace(line) for line in lines]
        if options.half is not None:
            traces = traces[options.half :: 2]
        runs = [
            arrivals(traces, options.sessions, options.window_s, options.speed, seed) for seed in range(options.seeds)
        ]
    table = Table(
        "choice", "hit rate", "of the clairvoyant", "of the most", "TTFT p50 s", "p99 s", "busiest / mean", "load"
    )
    rows: dict[str, list[dict[str, float]]] = {name: [] for name in CHOICES}
    bounds = []
    for turns in runs:
        bounds.append(most(turns))
        for name, choice in CHOICES.items():
            rows[name].append(played(turns, choice, options.replicas, options.kept_tokens))
    best = mean(row["hit_rate"] for row in rows["clairvoyant"])
    for name, own in rows.items():
        figures = {key: mean(row[key] for row in own) for key in own[0]}
        table.add_row(
            name, f"{figures['hit_rate']:.3f}", f"{figures['hit_rate'] / best:.3f}",
            f"{figures['hit_rate'] / mean(bounds):.3f}", f"{figures['ttft_p50_s']:.2f}", f"{figures['ttft_p99_s']:.2f}",
            f"{figures['busiest']:.2f}", f"{figures['load']:.0%}",
        )  # fmt: skip
    Console(width=120).print(table)


if __name__ == "__main__":
    main()
