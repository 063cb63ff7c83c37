"""Recorded agents' sessions as requests: token counts, hashes of blocks of the prompts, sub-agents and times, no words.

The format is that of the public traces of Claude Code: a line is a session with its `requests`; a request has its time
`t`, its tokens `in` and `out`, and `hash_runs`, the consecutive hashes of its prompt's blocks as (first, how many).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Sequence
from itertools import islice
from random import Random
from typing import Annotated, NamedTuple

import msgspec

from lab.sim.kv_cache import Part
from lab.simulation.request import TOOLS, SimRequest
from serve.routing.prefix_placement import BLOCK_TOKENS

Count = Annotated[int, msgspec.Meta(ge=0)]
Seconds = Annotated[float, msgspec.Meta(ge=0)]
Run = tuple[int, Count]


class _Request(msgspec.Struct):
    at_s: Seconds = msgspec.field(name="t")
    tokens: Count = msgspec.field(name="in", default=0)
    output: Count = msgspec.field(name="out", default=0)
    hash_runs: list[Run] | None = None
    requests: list[_Request] | None = None  # of a sub-agent, whose times begin with it


class Trace(msgspec.Struct):
    """One session as recorded."""

    id: str
    requests: list[_Request]
    block_size: Annotated[int, msgspec.Meta(ge=1)] = 64


class Turn(NamedTuple):
    """One request of a session.

    Attributes:
        at_s: When it comes.
        session: Whose; sub-agents have their session's, as agents send one cache key for all.
        tokens: Of the prompt.
        output: Tokens of the answer.
        blocks: Of the prompt as the gateway's index has them, each standing for all up to its end.
        parts: Of the prompt as a simulated engine's memory has them.
    """

    at_s: float
    session: str
    tokens: int
    output: int
    blocks: tuple[int, ...] = ()
    parts: tuple[Part, ...] = ()


def read_trace(line: bytes) -> Trace:
    """Reads a session.

    Raises:
        ValueError: The line is none.
    """
    return msgspec.json.decode(line, type=Trace)


def turns_of(trace: Trace, session: str, begin_s: float, speed: float) -> Iterator[Turn]:
    """Yields the requests of one session, its sub-agents' among them.

    Args:
        trace: As recorded.
        session: Its name.
        begin_s: When it begins.
        speed: How many times faster than recorded it goes.
    """
    for request in trace.requests:
        nested = request.requests
        for offset_s, each in [(0.0, request)] if nested is None else [(request.at_s, one) for one in nested]:
            runs = each.hash_runs or ()
            yield Turn(
                begin_s + (offset_s + each.at_s) / speed, session, each.tokens, each.output,
                _blocks(session, runs, trace.block_size), _parts(session, runs, each.tokens, trace.block_size),
            )  # fmt: skip


def _blocks(session: str, runs: Sequence[Run], size: int) -> tuple[int, ...]:
    hashes = (first + place for first, length in runs for place in range(length))
    step = max(1, BLOCK_TOKENS // size)
    return tuple(hash((session, each)) for each in islice(hashes, step - 1, None, step))


def _parts(session: str, runs: Sequence[Run], tokens: int, size: int) -> tuple[Part, ...]:
    """Returns a part for each run, and what is left of the prompt with the last one, which grows from turn to turn."""
    parts = [Part((session, first), length * size) for first, length in runs] or [Part((session, 0), 0)]
    rest = tokens - sum(part.tokens for part in parts)
    return (*parts[:-1], parts[-1]._replace(tokens=max(1, parts[-1].tokens + rest)))


def arrivals(traces: Sequence[Trace], sessions: int, window_s: float, speed: float, seed: int) -> list[Turn]:
    """Returns the requests of many sessions in order of time.

    Args:
        traces: As recorded; they are played again, as other sessions, once all are.
        sessions: How many.
        window_s: Time in which they begin, at random.
        speed: As of `turns_of`.
        seed: Of the beginnings.
    """
    chance = Random(seed)
    turns: list[Turn] = []
    for number in range(sessions):
        trace = traces[number % len(traces)]
        name = f"{trace.id}/{number // len(traces)}"
        turns += turns_of(trace, name, chance.uniform(0, window_s), speed)
    return sorted(turns)


def requests_of(turns: Iterable[Turn]) -> list[SimRequest]:
    """Returns them as requests with tools, which coding agents offer in all of theirs."""
    return [
        SimRequest(turn.at_s, turn.session, TOOLS, turn.tokens, max(1, turn.output), parts=turn.parts) for turn in turns
    ]
