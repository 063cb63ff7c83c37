"""CPU time of the guard per chunk of a stream, in one process, without HTTP."""

import time
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any

from bench.guard.rig import engine
from bench.guard.traffic import PARAMETERS, request
from lab.sim import wire
from lab.sim.generation import Generation
from serve.config.guard import GuardConfig
from serve.guard.core import Guard
from serve.guard.response import GuardedStream
from serve.http1.sse import decode_chunk, encode_frame
from serve.stream.line import Line

Chunk = dict[str, Any]
Streams = Sequence[tuple[Mapping[str, Any], Sequence[bytes], Sequence[Chunk]]]
KINDS: Mapping[str, Mapping[str, Any]] = {
    "prose": {"tool_choice": "none"},
    "tools": {},
    "strict JSON": {
        "tool_choice": "none",
        "tools": [],
        "response_format": {
            "type": "json_schema",
            "json_schema": {"name": "n", "strict": True, "schema": PARAMETERS},
        },
    },
}


@dataclass(frozen=True)
class Cost:
    """CPU time per chunk of one kind of stream, in microseconds.

    Attributes:
        json_us: Reading a chunk's JSON and writing it again, without a guard.
        guard_us: The guard alone.
        guarded_us: Bytes in, bytes out, as the gateway does it.
    """

    stream: str
    chunks: int
    json_us: float
    guard_us: float
    guarded_us: float


def measure(kind: str, answers: int) -> Cost:
    """Over clean streams of one kind."""
    streams = [_stream({**request("m", seed, stream=True), **KINDS[kind]}) for seed in range(answers)]
    count = sum(len(frames) for _, frames, _ in streams)
    runs = (_rewrite, _guard_only, _guarded)
    json_us, guard_us, guarded_us = (_best_of(partial(run, streams)) / count * 1e6 for run in runs)
    return Cost(kind, count, json_us, guard_us, guarded_us)


def _stream(body: Mapping[str, Any]) -> tuple[Mapping[str, Any], list[bytes], list[Chunk]]:
    generation = Generation(body, engine())
    envelope = wire.ResponseBuilder("chatcmpl-bench", "m", 1, chat=True, prompt_tokens=100)
    chunks = [envelope.chunk(0, {"role": "assistant", "content": ""})]
    chunks += [envelope.chunk(0, delta) for delta in generation.deltas() if delta]
    chunks.append(envelope.chunk(0, {}, generation.finish_reason))
    frames = [encode_frame(chunk) for chunk in chunks]
    return body, frames, [decode_chunk(frame[6:]) for frame in frames]


def _rewrite(streams: Streams) -> None:
    for _, frames, _ in streams:
        for frame in frames:
            encode_frame(decode_chunk(frame[6:]))


def _guard_only(streams: Streams) -> None:
    for body, _, chunks in streams:
        guard = Guard(GuardConfig(), body)
        for chunk in chunks:
            guard.feed(chunk)
        guard.finish()


def _guarded(streams: Streams) -> None:
    for body, frames, _ in streams:
        stream = GuardedStream(Guard(GuardConfig(), body))
        line = Line([stream])
        for frame in frames:
            line.feed(frame)
        stream.finish_attempt()


def _best_of(run: Callable[[], None], rounds: int = 3) -> float:
    """CPU seconds of the quickest of several rounds."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)
