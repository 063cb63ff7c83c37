"""Paired runs of load on the engine and through the gateway, summarized as ratios and added times."""

import http.client
import json
import random
import time
from collections.abc import Mapping, Sequence
from statistics import median, quantiles
from typing import Any
from urllib.parse import urlsplit

from bench.gateway import load, traffic
from bench.gateway.load import Client, Sample
from bench.gateway.runner import tree_cpu_s
from bench.gateway.traffic import Shape
from bench.peers import Running

TOKENS = 64
_COUNTED = b'"completion_tokens":%d' % TOKENS


class EngineClient(Client):
    """A caller of a real engine: an answer is right when it has all the tokens that were asked for."""

    def right(self, body: bytes) -> bool:
        return _COUNTED in body


def shape(streamed: bool) -> Shape:
    """A request for exactly `TOKENS` tokens, whatever the model would like to say."""
    body: dict[str, Any] = {
        "model": traffic.MODEL, "messages": [{"role": "user", "content": "Count from one on."}], "temperature": 0,
        "max_tokens": TOKENS, "min_tokens": TOKENS, "ignore_eos": True,
    }  # fmt: skip
    if streamed:
        body |= {"stream": True, "stream_options": {"include_usage": True}}
    name = "stream" if streamed else "whole"
    return Shape(name, json.dumps(body, separators=(",", ":")).encode(), "", b"", streamed)


def one_at_a_time(direct: Running, gateway: Running, pairs: int, streamed: bool) -> dict[str, Any]:
    """Milliseconds to the first byte and to the last, over pairs of the same request in random order, nobody else."""
    callers = {"direct": _Caller(direct), "gateway": _Caller(gateway)}
    asked = shape(streamed).body
    for caller in callers.values():
        for _ in range(5):
            caller.ask(asked)
    took: dict[str, list[tuple[float, float]]] = {name: [] for name in callers}
    for _ in range(pairs):
        for name in random.sample(list(callers), 2):
            took[name].append(callers[name].ask(asked))
    (first, first_gateway), (last, last_gateway) = (
        ([each[place] for each in took["direct"]], [each[place] for each in took["gateway"]]) for place in (0, 1)
    )
    times = {"last_byte": added(last, last_gateway), "ratio": ratios(last_gateway, last)}
    return {"pairs": pairs, **({"first_byte": added(first, first_gateway)} if streamed else {}), **times}


class _Caller:
    """One connection that stays open; blocking, so that no event loop of ours is in what it measures."""

    def __init__(self, where: Running) -> None:
        self._connection = http.client.HTTPConnection(urlsplit(where.url).netloc)
        self._headers = {"authorization": f"Bearer {where.key or 'none'}", "content-type": "application/json"}

    def ask(self, body: bytes) -> tuple[float, float]:
        """Milliseconds to the first byte of the body and to its last."""
        began = time.perf_counter()
        self._connection.request("POST", "/v1/chat/completions", body, self._headers)
        response = self._connection.getresponse()
        reply = response.read1(1)
        first = time.perf_counter()
        reply += response.read()
        last = time.perf_counter()
        if response.status != 200 or _COUNTED not in reply:
            raise SystemExit(f"{response.status} from {self._connection.host}: {reply[:500]!r}")
        return (first - began) * 1000, (last - began) * 1000


async def under_load(
    direct: Running, gateway: Running, concurrency: int, streamed: bool, rounds: int, seconds: float
) -> dict[str, Any]:
    """Answers a second in `rounds` pairs of turns, and the CPU of each answer by who used it."""
    sides, asked = {"direct": direct, "gateway": gateway}, shape(streamed)
    turns: dict[str, list[tuple[Sample, dict[str, float]]]] = {name: [] for name in sides}
    for number in range(rounds + 1):
        for name in sorted(sides, reverse=bool(number % 2)):  # AB BA AB ...: a slow minute hits both alike
            before = {each: tree_cpu_s(where.pid) for each, where in sides.items()}
            sample = await load.run(sides[name].url, asked, concurrency, seconds, EngineClient)
            if sample.wrong:
                raise SystemExit(f"{sample.wrong} wrong answers from {name}: {sample.seen}")
            used = {each: tree_cpu_s(where.pid) - before[each] for each, where in sides.items()}
            turns[name].append((sample, {"engine": used["direct"], "gateway": used["gateway"], "load": sample.cpu_s}))
    kept = {name: made[1:] for name, made in turns.items()}  # the first pair warms up
    speed = {name: [len(s.latency_ms) / s.elapsed_s for s, _ in made] for name, made in kept.items()}
    return {
        "concurrency": concurrency,
        "rounds": rounds,
        "seconds": seconds,
        "tokens_per_s": {name: round(median(each) * TOKENS) for name, each in speed.items()},
        "ratio": ratios(speed["direct"], speed["gateway"]),
        "cpu_ms_an_answer": {name: _costs(made) for name, made in kept.items()},
    }


def _costs(made: Sequence[tuple[Sample, Mapping[str, float]]]) -> dict[str, float]:
    answers = sum(len(sample.latency_ms) for sample, _ in made)
    return {role: round(sum(used[role] for _, used in made) / answers * 1000, 2) for role in made[0][1]}


def added(direct: Sequence[float], gateway: Sequence[float]) -> dict[str, float]:
    """Medians of both, and the median and quartiles of the difference in each pair."""
    low, middle, high = quantiles([b - a for a, b in zip(direct, gateway, strict=True)], n=4)
    reply = {"direct_p50_ms": median(direct), "gateway_p50_ms": median(gateway)}
    reply |= {"added_p50_ms": middle, "added_p25_ms": low, "added_p75_ms": high}
    return {name: round(value, 3) for name, value in reply.items()}


def ratios(below: Sequence[float], above: Sequence[float]) -> dict[str, float]:
    """Median and quartiles of `above / below` over the pairs, and 95 % bounds of the median by resampling."""
    each = [b / a for a, b in zip(below, above, strict=True)]
    low, middle, high = quantiles(each, n=4)
    again = sorted(median(random.choices(each, k=len(each))) for _ in range(2000))
    reply = {"p50": middle, "p25": low, "p75": high, "at_least": again[50], "at_most": again[-51]}
    return {name: round(value, 3) for name, value in reply.items()}
