"""What the guard's benchmark measures, with simulated engines and the guard in one process, without HTTP."""

from __future__ import annotations

import json
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial
from random import Random
from typing import Any

import jsonschema

from serve.engine.sim import FAULTS, SimSettings, wire
from serve.engine.sim.generation import Generation
from serve.integrity import Guard, GuardSettings, Key, Outcome, Quarantine, QuarantineSettings, State, Verdict

Chunk = dict[str, Any]
Call = tuple[str, str]
DRAFTS = 3
TEXT_FAULTS = tuple(name for name, fault in FAULTS.items() if fault.edit)
PARAMETERS = {
    "type": "object",
    "properties": {
        "command": {"type": "string", "minLength": 3},
        "timeout_s": {"type": "integer", "minimum": 1, "maximum": 600},
        "paths": {"type": "array", "items": {"type": "string"}, "maxItems": 4},
    },
    "required": ["command", "timeout_s"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": PARAMETERS}} for name in ("bash", "read", "edit")
]
DOCUMENT = {"type": "json_schema", "json_schema": {"name": "n", "strict": True, "schema": PARAMETERS}}
VALID = jsonschema.Draft202012Validator(PARAMETERS)


@dataclass(frozen=True)
class Correctness:
    """Outcome of many requests at one fault rate.

    Attributes:
        kind: `tools`: a call is required. `auto`: the model chooses; calls that vanish behind prose then look like an
            answer in prose, which no check of the answer can tell.
        wrong_unguarded: Answers whose calls would not be those that the model meant, had no guard been there.
        broken: Answers with a broken call at the client.
        lost_or_doubled: Answers whose calls are not exactly those that the model meant.
        needless_reruns: Reruns of answers without a fault.
        extra_tokens: Tokens computed by discarded attempts, as a share of those of the answers.
        quarantined_after: Answers of the speculative pool until the test took it out; None if it did not.
    """

    kind: str
    fault_rate: float
    requests: int
    faults: int
    wrong_unguarded: int
    broken: int
    lost_or_doubled: int
    errors: int
    reruns: int
    needless_reruns: int
    extra_tokens: float
    quarantined_after: int | None


@dataclass(frozen=True)
class Cost:
    """CPU time per chunk of one kind of stream, in microseconds.

    Attributes:
        json_us: Reading a chunk's JSON and writing it again, without a guard.
        guard_us: The guard alone.
        guarded_us: Reading, guarding, and writing what changed.
        chunks_held: Steps for which a call's first delta waits, at the median; 0 for text.
    """

    stream: str
    chunks: int
    json_us: float
    guard_us: float
    guarded_us: float
    chunks_held: int


def request(seed: int, kind: str = "tools") -> dict[str, Any]:
    """A chat request; the seed makes each a different one."""
    extras: dict[str, dict[str, Any]] = {
        "tools": {"tools": TOOLS, "tool_choice": "required"},
        "auto": {"tools": TOOLS},
        "text": {"tools": TOOLS, "tool_choice": "none"},
        "json": {"response_format": DOCUMENT},
    }
    return {"messages": [{"role": "user", "content": "检查依赖"}], "seed": seed, **extras[kind]}


def chunks_of(generation: Generation) -> list[Chunk]:
    envelope = wire.Envelope("chatcmpl-bench", "m", 1, chat=True, prompt_tokens=100)
    made = [envelope.chunk(0, {"role": "assistant", "content": ""})]
    made += [envelope.chunk(0, delta) for delta in generation.deltas() if delta]
    return [*made, envelope.chunk(0, {}, generation.finish_reason)]


def calls_of(chunks: Iterable[Chunk]) -> list[Call]:
    deltas = [choice["delta"] for chunk in chunks for choice in chunk.get("choices", ())]
    calls = wire.fold(deltas).get("tool_calls", [])
    return [(call["function"]["name"], call["function"]["arguments"]) for call in calls]


def valid(call: Call) -> bool:
    name, arguments = call
    try:
        value = json.loads(arguments)
    except ValueError:
        return False
    return name in ("bash", "read", "edit") and VALID.is_valid(value) and "\ufffd" not in arguments


def answer(body: Mapping[str, Any], attempts: Sequence[Generation]) -> tuple[list[Chunk], Guard]:
    """What a client gets of a guarded answer."""
    guard = Guard(GuardSettings(), body)
    sent: list[Chunk] = []
    for number, generation in enumerate(attempts):
        if number:
            guard.restart("standard")
        for chunk in chunks_of(generation):
            sent += guard.feed(chunk)
            if guard.state is not State.OPEN:
                break
        else:
            sent += guard.finish()
        if guard.state is not State.RERUN:
            break
    return (sent if guard.state is State.DONE else sent + guard.give_up()), guard


def measure_correctness(kind: str, rate: float, requests: int) -> Correctness:
    """Send many tool requests to a faulty pool with a clean one behind it."""
    faulty = SimSettings(num_speculative_tokens=DRAFTS, faults={name: rate / len(TEXT_FAULTS) for name in TEXT_FAULTS})
    clean = SimSettings()
    counted: Counter[str] = Counter()
    quarantine = Quarantine(QuarantineSettings(), {"m": "standard"})
    quarantined_after = None
    for seed in range(requests):
        body = request(seed, kind)
        attempts = (Generation(body, faulty), Generation(body, clean))
        meant = calls_of(chunks_of(Generation(body, clean)))
        unguarded = calls_of(chunks_of(Generation(body, faulty)))
        sent, guard = answer(body, attempts)
        calls = calls_of(sent)
        rerun, faulted = guard.outcome is Outcome.RERUN, attempts[0].fault is not None
        counted["faults"] += faulted
        counted["wrong_unguarded"] += unguarded != meant
        counted["broken"] += not all(map(valid, calls))
        counted["lost_or_doubled"] += calls != meant
        counted["errors"] += guard.state is State.FAILED
        counted["reruns"] += rerun
        counted["needless_reruns"] += rerun and not faulted
        counted["extra"] += attempts[0].completion_tokens if rerun else 0
        counted["tokens"] += attempts[1].completion_tokens
        for pool, verdict in zip(("speculative", "standard"), guard.verdicts, strict=False):
            if quarantine.record(Key("m", pool, "tools_forced"), verdict, seed) and quarantined_after is None:
                quarantined_after = seed + 1
    fields = ("faults", "wrong_unguarded", "broken", "lost_or_doubled", "errors", "reruns", "needless_reruns")
    figures = {name: counted[name] for name in fields}
    extra = counted["extra"] / counted["tokens"]
    return Correctness(kind, rate, requests, **figures, extra_tokens=extra, quarantined_after=quarantined_after)


def measure_cost(kind: str, answers: int) -> Cost:
    """CPU time per chunk over clean streams of one kind."""
    pool = SimSettings(num_speculative_tokens=DRAFTS, content_tokens=(100, 300))
    bodies = [request(seed, kind) for seed in range(answers)]
    frames = [[wire.frame(chunk) for chunk in chunks_of(Generation(body, pool))] for body in bodies]
    parsed = [[json.loads(frame[6:]) for frame in stream] for stream in frames]
    count = sum(map(len, frames))
    streams = list(zip(bodies, frames, parsed, strict=True))
    runs = (_rewrite, _guard_only, _guarded)
    json_us, guard_us, guarded_us = (best_of(partial(run, streams)) / count * 1e6 for run in runs)
    held = sorted(steps_held(body, chunks) for body, _, chunks in streams)
    return Cost(kind, count, json_us, guard_us, guarded_us, held[len(held) // 2])


Streams = Sequence[tuple[Mapping[str, Any], Sequence[bytes], Sequence[Chunk]]]


def _rewrite(streams: Streams) -> None:
    for _, frames, _ in streams:
        for frame in frames:
            wire.frame(json.loads(frame[6:]))


def _guard_only(streams: Streams) -> None:
    for body, _, chunks in streams:
        guard = Guard(GuardSettings(), body)
        for chunk in chunks:
            guard.feed(chunk)
        guard.finish()


def _guarded(streams: Streams) -> None:
    for body, frames, _ in streams:
        guard = Guard(GuardSettings(), body)
        for frame in frames:
            chunk = json.loads(frame[6:])
            for out in guard.feed(chunk):
                if out is not chunk:  # an unchanged chunk's own bytes go on
                    wire.frame(out)
        guard.finish()


def best_of(run: Callable[[], None], rounds: int = 3) -> float:
    """CPU seconds of the quickest of several rounds."""
    taken = []
    for _ in range(rounds):
        start = time.process_time()
        run()
        taken.append(time.process_time() - start)
    return min(taken)


def steps_held(body: Mapping[str, Any], stream: Sequence[Chunk]) -> int:
    """Chunks between the engine's first delta of the first call and the guard's."""
    guard = Guard(GuardSettings(), body)
    began = None
    for place, chunk in enumerate(stream):
        if began is None and "tool_calls" in chunk["choices"][0]["delta"]:
            began = place
        if any("tool_calls" in out["choices"][0]["delta"] for out in guard.feed(chunk)):
            return place - (began or 0)
    return 0


def time_to_quarantine(rate: float, runs: int, reference_share: float) -> list[int]:
    """Answers of the speculative pool until quarantine, run by run, sorted.

    The standard pool is seen through reruns and through a share of requests that go there anyway.
    """
    found = []
    for run in range(runs):
        judge, rng = Quarantine(QuarantineSettings(), {"m": "standard"}), Random(run)
        for number in range(1, 20_001):
            bad = rng.random() < rate
            seen = _counted(judge, "speculative", bad, number)
            if bad or rng.random() < reference_share:
                _counted(judge, "standard", False, number)
            if seen:
                found.append(number)
                break
    return sorted(found)


def _counted(judge: Quarantine, pool: str, bad: bool, number: int) -> bool:
    verdict = Verdict(Outcome.INVALID_JSON if bad else Outcome.CLEAN)
    return judge.record(Key("m", pool, "tools_auto"), verdict, number) is not None
