"""Runs the cells: every side in turn, again and again, so that a busy moment of the machine hits all of them."""

from __future__ import annotations

import contextlib
import json
import subprocess
import sys
import tempfile
import time
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass, field

import psutil

from bench import peers
from bench.gateway import sides, traffic
from bench.gateway.load import Sample
from bench.peers import Peer, PeerError, Running
from serve.launch.local import free_port

Say = Callable[[str], None]
# Once a cluster answers, Ray Serve starts HAProxy anew as replicas come up, and the old one ends its connections.
_SETTLES_S = 15.0


@dataclass(frozen=True)
class Cell:
    """One kind of request at one concurrency."""

    shape: str
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.shape}@{self.concurrency}"

    @classmethod
    def parse(cls, name: str) -> Cell:
        """From `stream@16`; raises `ValueError` with what is known."""
        shape, _, concurrency = name.partition("@")
        if shape not in traffic.shapes() or not concurrency.isdecimal() or int(concurrency) < 1:
            known = ", ".join(traffic.shapes())
            raise ValueError(f"{name!r} is no cell; write SHAPE@CONCURRENCY, such as stream@16; shapes: {known}")
        return cls(shape, int(concurrency))


@dataclass(frozen=True)
class Measurement:
    """One side in one cell, once. Times in milliseconds; `*_cpu_ms` is CPU for each answer."""

    side: str
    cell: str
    answers: int
    per_s: float
    p50_ms: float
    p99_ms: float
    first_byte_p50_ms: float
    exact: float
    cpu_ms: float
    upstream_cpu_ms: float
    load_cpu_ms: float
    rss_mb: float


def tree_cpu_s(pid: int) -> float:
    """CPU seconds that a process and all that came of it have used so far."""
    return sum(_times(each) for each in _tree(pid))


def tree_rss_mb(pid: int) -> float:
    """Resident memory of a process and all that came of it."""
    total = 0
    for each in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += each.memory_info().rss
    return total / 2**20


def _tree(pid: int) -> list[psutil.Process]:
    started = psutil.Process(pid)
    return [started, *started.children(recursive=True)]


def _times(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@contextlib.contextmanager
def upstream() -> Iterator[Running]:
    """The fake engine as a process."""
    port = free_port()
    command = [sys.executable, "-m", "bench.gateway.upstream", "--port", str(port)]
    process = subprocess.Popen(command)
    running = Running(f"http://127.0.0.1:{port}", None, process.pid)
    try:
        _until_it_answers(running)
        yield running
    finally:
        process.terminate()
        process.wait(10)


def _until_it_answers(running: Running) -> None:
    for _ in range(100):
        with contextlib.suppress(OSError):
            peers.ask(running, traffic.MODEL)
            return
        time.sleep(0.1)
    raise PeerError("the fake engine did not start")


def apply_load(url: str, cell: Cell, seconds: float) -> Sample:
    """Run the load generator as a process of its own.

    Raises:
        PeerError: The gateway broke connections, or answered otherwise than the upstream did.
    """
    command = [sys.executable, "-m", "bench.gateway.load", url, "--shape", cell.shape]
    command += ["--concurrency", str(cell.concurrency), "--seconds", str(seconds)]
    with tempfile.TemporaryFile("w+") as out:  # some hundred kilobytes: a pipe may hold the generator up
        try:
            done = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=seconds + 60, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{cell.name}: no end within {error.timeout:.0f} s") from error
        if done.returncode:
            raise PeerError(f"{cell.name}: {done.stderr.strip().splitlines()[-1]}")
        out.seek(0)
        sample = Sample(**json.load(out))
    if sample.wrong:
        raise PeerError(f"{cell.name}: {sample.wrong} of {len(sample.latency_ms)} answers wrong: {sample.seen}")
    return sample


def measure(side: str, running: Running, engine: Running, cell: Cell, seconds: float) -> Measurement:
    """One run of load against one side."""
    direct = running.pid == engine.pid
    before, engine_before = tree_cpu_s(running.pid), tree_cpu_s(engine.pid)
    sample = apply_load(running.url, cell, seconds)
    used, engine_used = tree_cpu_s(running.pid) - before, tree_cpu_s(engine.pid) - engine_before
    latency, first, answers = sorted(sample.latency_ms), sorted(sample.first_byte_ms), len(sample.latency_ms)
    return Measurement(
        side=side, cell=cell.name, answers=answers, per_s=answers / sample.elapsed_s,
        p50_ms=latency[answers // 2], p99_ms=latency[int(answers * 0.99)], first_byte_p50_ms=first[answers // 2],
        exact=sample.exact / answers, cpu_ms=0.0 if direct else used / answers * 1000,
        upstream_cpu_ms=engine_used / answers * 1000, load_cpu_ms=sample.cpu_s / answers * 1000,
        rss_mb=0.0 if direct else tree_rss_mb(running.pid),
    )  # fmt: skip


@dataclass
class Results:
    """Everything that was measured, and what could not be."""

    measurements: list[Measurement] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {"versions": self.versions, "missing": self.missing, "runs": [asdict(m) for m in self.measurements]}


def run(results: Results, wanted: Sequence[str], cells: Sequence[Cell], rounds: int, seconds: float, say: Say) -> None:
    """Measure the sides named, and always the upstream by itself.

    Args:
        results: Filled as it goes, so that a run that is broken off has what was measured.
        wanted: Names of `sides.NAMES`.
        cells: What to measure.
        rounds: How often every side has its turn in every cell.
        seconds: Length of one run of load.
        say: Told what is going on.
    """
    with upstream() as engine, contextlib.ExitStack() as held:
        ready = {sides.DIRECT: engine}
        for side in (each for each in sides.QUIET if each.name in wanted):
            _enter(side, engine, ready, held, results, say)
        _rounds(ready, engine, cells, rounds, seconds, results, say)
        held.close()
        for side in (each for each in sides.CLUSTERS if each.name in wanted):
            with contextlib.ExitStack() as alone:
                ready = {sides.DIRECT: engine}
                _enter(side, engine, ready, alone, results, say)
                del ready[sides.DIRECT]
                time.sleep(_SETTLES_S if ready else 0)
                _rounds(ready, engine, cells, rounds, seconds, results, say)


def _enter(side: Peer, engine: Running, ready: dict[str, Running], held: contextlib.ExitStack, results: Results,
           say: Say) -> None:  # fmt: skip
    say(f"starting {side.name}")
    try:
        peers.install(side)
        results.versions[side.name] = peers.version(side)
        ready[side.name] = held.enter_context(peers.launched(side, engine.url, traffic.MODEL))
    except PeerError as error:
        results.missing[side.name] = str(error)
        say(str(error))


def _rounds(ready: dict[str, Running], engine: Running, cells: Sequence[Cell], rounds: int, seconds: float,
            results: Results, say: Say) -> None:  # fmt: skip
    for number in range(rounds):
        for cell in cells:
            for side, running in ready.items():
                if cell.shape == "rerun" and side != sides.DIRECT and "specgate" not in side:
                    continue  # the others hand the broken call on; there is nothing to compare
                if f"{side} {cell.name}" in results.missing:
                    continue
                try:
                    made = measure(side, running, engine, cell, seconds)
                except PeerError as error:
                    results.missing[f"{side} {cell.name}"] = str(error)
                    say(f"{side}: {error}")
                    continue
                results.measurements.append(made)
                say(f"{number + 1}/{rounds} {cell.name} {side}: {made.per_s:.0f}/s, {made.p50_ms:.2f} ms, "
                    f"CPU {made.cpu_ms:.3f} ms")  # fmt: skip
