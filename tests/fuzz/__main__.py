"""Mutates requests, engines' responses and guarded streams, and keeps every input that leads to a new outcome.

The listener's oracle is h11, the client's is the same response in one piece, and the guard must end in a state. What
breaks a rule is written to the folder `findings` of the corpus, and the exit status is 1.
"""

import argparse
import asyncio
import hashlib
import json
import random
import sys
import time
import traceback
from collections.abc import Callable
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parents[1]))

from support.guard_harness import CLEAN, broken, chunks_of, json_request, tools_request

from lab.sim import FAULTS
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState
from serve.http1.client import ClientConnection
from tests.component.test_upstream import CHUNKED, EARLY, WHOLE, Flow
from tests.unit.http1.test_against_h11 import BODIES, HEADERS, LAXER, STRICTER, cut, ours, theirs

TOKENS = [b"\r\n", b"\0", b":", b" ", b"0\r\n\r\n", b"{", b"]", b'"', b"\\ud83d", b"9" * 5000, b"[" * 1000, b"null"]


class Violation(Exception):
    """A rule that an input has broken."""


def listener(data: bytes, rng: random.Random) -> str:
    """Accepts a request if and only if h11 does, with the same body, but for the known exceptions."""
    request, message = ours(cut(data, [rng.randrange(400) for _ in range(3)]))
    oracle = theirs(data)
    if request is None and oracle is not None and not any(part in message for part in STRICTER):
        raise Violation(f"only h11 accepts it: {message}")
    if request is not None and oracle is None and not any(pattern.match(data) for pattern in LAXER.values()):
        raise Violation("only we accept it")
    if request is not None and oracle is not None and request != oracle:
        raise Violation("h11 reads another request")
    return message or str(request is not None)


def engine(data: bytes, rng: random.Random) -> str:
    """Reads the same from a response in one piece and cut anywhere."""
    at_once, split = (
        asyncio.run(_read(parts)) for parts in ([data], cut(data, [rng.randrange(400) for _ in range(4)]))
    )
    if at_once[:2] != split[:2]:
        raise Violation(f"{at_once} in one piece, {split} cut")
    return f"{at_once[0]} {at_once[2]}"


async def _read(parts: list[bytes]) -> tuple[int, bytes | None, str]:
    connection = ClientConnection(60, lambda _: None)
    connection.connection_made(Flow())  # type: ignore[arg-type]
    connection.send(b"", b"")
    for part in parts:
        connection.data_received(part)
    connection.connection_lost(None)
    body = b""
    try:
        await connection.receive_head()
        while part := await connection.read():
            body += part
    except OSError as error:
        return 0, None, str(error)[:30]
    return connection.status, body, "complete"


def guard(data: bytes, _: random.Random) -> str:
    """Takes any chunks of any answer to any request, and ends."""
    try:
        request, *chunks = json.loads(data)
    except (ValueError, RecursionError):
        return "no JSON"
    if not isinstance(request, dict) or not all(isinstance(chunk, dict) for chunk in chunks):
        return "no objects"
    judge = Guard(GuardConfig(), request)
    for chunk in chunks:
        judge.feed(chunk)
        if judge.state is not GuardState.OPEN:
            break
    else:
        judge.finish()
    if judge.state is GuardState.OPEN:
        raise Violation("the guard has not ended")
    state = judge.state
    if state is not GuardState.DONE:
        judge.give_up()
    return f"{state} {sorted(str(defect) for verdict in judge.verdicts for defect in verdict.defects)}"[:80]


Target = Callable[[bytes, random.Random], str]
TARGETS: dict[str, Target] = {"listener": listener, "engine": engine, "guard": guard}


def seeds(name: str) -> list[bytes]:
    """Returns the inputs from which a target starts."""
    if name == "listener":
        return [b"POST / HTTP/1.1\r\nHost: a\r\n%b\r\n\r\n%b" % (h, b) for h in HEADERS for b in BODIES]
    if name == "engine":
        return [WHOLE, CHUNKED, EARLY, WHOLE * 2, CHUNKED.replace(b"5\r\n", b"5;x=y\r\n")]
    pools = [CLEAN, *(broken(fault) for fault in FAULTS)]
    return [
        json.dumps([request, *chunks_of(request, pool)]).encode()
        for seed in range(6)
        for request in (tools_request(seed), json_request(seed))
        for pool in pools
    ]


def mutated(data: bytes, other: bytes, rng: random.Random) -> bytes:
    """Returns an input with one to four small changes."""
    for _ in range(rng.randint(1, 4)):
        start = rng.randrange(len(data) + 1)
        end = start + rng.choice([0, 0, 1, 2, 10])
        piece = rng.choice([rng.choice(TOKENS), bytes([rng.randrange(256)]), data[start : start + 20], b""])
        if rng.random() < 0.1:
            at = rng.randrange(len(other) + 1)
            piece = other[at : at + rng.randrange(60)]
        data = data[:start] + piece + data[end:]
    return data[:200_000] or b"\0"


def main() -> int:
    """Runs all targets in turn until the time is over; returns the exit status."""
    parser = argparse.ArgumentParser(prog="python -m tests.fuzz", description=__doc__)
    parser.add_argument("--minutes", type=float, default=1.0)
    parser.add_argument("--seed", type=int, default=None)
    parser.add_argument("--corpus", type=Path, default=Path("build/fuzz"))
    options = parser.parse_args()
    seed = options.seed if options.seed is not None else random.randrange(2**32)
    rng = random.Random(seed)
    inputs = {name: seeds(name) + _stored(options.corpus / name) for name in TARGETS}
    outcomes: dict[str, set[str]] = {name: set() for name in TARGETS}
    runs = 0
    end = time.monotonic() + options.minutes * 60
    while time.monotonic() < end:
        name = rng.choice(list(TARGETS))
        data = mutated(rng.choice(inputs[name]), rng.choice(inputs[name]), rng)
        outcome, folder = _outcome(name, data, rng, options.corpus)
        runs += 1
        if outcome not in outcomes[name]:
            outcomes[name].add(outcome)
            inputs[name].append(data)
            folder.mkdir(parents=True, exist_ok=True)
            (folder / hashlib.sha256(data).hexdigest()[:16]).write_bytes(data)
    found = [outcome for seen in outcomes.values() for outcome in seen if outcome.startswith("!")]
    print(f"seed {seed}: {runs} inputs, {sum(map(len, outcomes.values()))} outcomes, {len(found)} findings")
    print("\n".join(found))
    return 1 if found else 0


def _stored(folder: Path) -> list[bytes]:
    return [path.read_bytes() for path in sorted(folder.glob("*"))] if folder.is_dir() else []


def _outcome(name: str, data: bytes, rng: random.Random, corpus: Path) -> tuple[str, Path]:
    """Returns what came of an input, with `!` before a finding, and the folder in which to keep it."""
    try:
        return TARGETS[name](data, rng), corpus / name
    except Violation as error:
        return f"!{name}: {error}"[:120], corpus / "findings"
    except BaseException as error:  # a Rust panic is none of Exception
        if isinstance(error, KeyboardInterrupt):
            raise
        place = traceback.extract_tb(error.__traceback__)[-1]
        return f"!{name}: {type(error).__name__} at {Path(place.filename).name}:{place.lineno}", corpus / "findings"


if __name__ == "__main__":
    sys.exit(main())
