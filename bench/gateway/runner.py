"""Runs the workloads: all sides take turns, so that a busy moment of the machine affects all of them."""

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
from serve.launch.ports import free_port

Say = Callable[[str], None]
# After a cluster's first answer, Ray Serve still restarts HAProxy as replicas come up, which drops connections.
_SETTLES_S = 15.0


@dataclass(frozen=True)
class Workload:
    """One kind of request at one concurrency."""

    shape: str
    concurrency: int

    @property
    def name(self) -> str:
        return f"{self.shape}@{self.concurrency}"

    @classmethod
    def parse(cls, name: str) -> Workload:
        """Parse a name such as `stream@16`.

        Raises:
            ValueError: It is not SHAPE@CONCURRENCY; the message lists the shapes.
        """
        shape, _, concurrency = name.partition("@")
        if shape not in traffic.shapes() or not concurrency.isdecimal() or int(concurrency) < 1:
            shapes = ", ".join(traffic.shapes())
            raise ValueError(f"{name!r} is not a cell; use SHAPE@CONCURRENCY, such as stream@16; shapes: {shapes}")
        return cls(shape, int(concurrency))


@dataclass(frozen=True)
class Measurement:
    """One run of one side under one workload; `*_cpu_ms` is CPU per answer."""

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
    """Returns the CPU seconds that a process and its descendants have used so far."""
    return sum(_cpu_s(process) for process in _tree(pid))


def tree_rss_mb(pid: int) -> float:
    """Returns the resident memory of a process and its descendants."""
    total = 0
    for process in _tree(pid):
        with contextlib.suppress(psutil.NoSuchProcess):
            total += process.memory_info().rss
    return total / 2**20


def _tree(pid: int) -> list[psutil.Process]:
    root = psutil.Process(pid)
    return [root, *root.children(recursive=True)]


def _cpu_s(process: psutil.Process) -> float:
    try:
        times = process.cpu_times()
    except psutil.NoSuchProcess:
        return 0.0
    return float(times.user + times.system)


@contextlib.contextmanager
def upstream() -> Iterator[Running]:
    """Run the fake engine as its own process."""
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


def apply_load(url: str, cell: Workload, seconds: float) -> Sample:
    """Run the load generator as its own process.

    Args:
        url: Base URL of the side under load.
        cell: The workload.
        seconds: Length of the run.

    Raises:
        PeerError: The gateway broke connections, or changed the upstream's answers.
    """
    command = [sys.executable, "-m", "bench.gateway.load", url, "--shape", cell.shape]
    command += ["--concurrency", str(cell.concurrency), "--seconds", str(seconds)]
    with tempfile.TemporaryFile("w+") as out:  # a few hundred kilobytes could block the generator on a pipe
        try:
            generator = subprocess.run(
                command, stdout=out, stderr=subprocess.PIPE, text=True, timeout=seconds + 60, check=False
            )
        except subprocess.TimeoutExpired as error:
            raise PeerError(f"{cell.name}: did not finish within {error.timeout:.0f} s") from error
        if generator.returncode:
            raise PeerError(f"{cell.name}: {generator.stderr.strip().splitlines()[-1]}")
        out.seek(0)
        sample = Sample(**json.load(out))
    if sample.wrong:
        raise PeerError(f"{cell.name}: {sample.wrong} of {len(sample.latency_ms)} answers are wrong: {sample.seen}")
    return sample


def measure(side: str, running: Running, engine: Running, cell: Workload, seconds: float) -> Measurement:
    """Measure one run of load against one side.

    Args:
        side: Its name.
        running: Its process.
        engine: The fake engine behind it; the same as `running` if there is no gateway in between.
        cell: The workload.
        seconds: Length of the run.
    """
    direct = running.pid == engine.pid
    before = tree_cpu_s(running.pid)
    engine_before = tree_cpu_s(engine.pid)
    sample = apply_load(running.url, cell, seconds)
    used = tree_cpu_s(running.pid) - before
    engine_used = tree_cpu_s(engine.pid) - engine_before
    latency = sorted(sample.latency_ms)
    first = sorted(sample.first_byte_ms)
    answers = len(latency)
    return Measurement(
        side=side, cell=cell.name, answers=answers, per_s=answers / sample.elapsed_s,
        p50_ms=latency[answers // 2], p99_ms=latency[int(answers * 0.99)], first_byte_p50_ms=first[answers // 2],
        exact=sample.exact / answers, cpu_ms=0.0 if direct else used / answers * 1000,
        upstream_cpu_ms=engine_used / answers * 1000, load_cpu_ms=sample.cpu_s / answers * 1000,
        rss_mb=0.0 if direct else tree_rss_mb(running.pid),
    )  # fmt: skip


@dataclass
class Results:
    """All measurements, and the reasons for missing ones."""

    measurements: list[Measurement] = field(default_factory=list)
    missing: dict[str, str] = field(default_factory=dict)
    versions: dict[str, str] = field(default_factory=dict)

    def to_dict(self) -> dict[str, object]:
        return {"versions": self.versions, "missing": self.missing, "runs": [asdict(m) for m in self.measurements]}


def run(
    results: Results,
    wanted: Sequence[str],
    cells: Sequence[Workload],
    rounds: int,
    seconds: float,
    say: Say,
    more: Sequence[Peer] = (),
) -> None:
    """Measure the given sides, and always the upstream by itself.

    Args:
        results: Filled as the run proceeds, so that an interrupted run keeps what it has measured.
        wanted: Names from `sides.NAMES`.
        cells: The workloads.
        rounds: Turns of every side in every workload.
        seconds: Length of one run of load.
        say: Called with lines of progress.
        more: Further sides.
    """
    with upstream() as engine, contextlib.ExitStack() as stack:
        ready = {sides.DIRECT: engine}
        for side in (*(side for side in sides.QUIET if side.name in wanted), *more):
            _enter(side, engine, ready, stack, results, say)
        _rounds(ready, engine, cells, rounds, seconds, results, say)
        stack.close()
        for side in (side for side in sides.CLUSTERS if side.name in wanted):
            with contextlib.ExitStack() as cluster_stack:
                ready = {sides.DIRECT: engine}
                _enter(side, engine, ready, cluster_stack, results, say)
                del ready[sides.DIRECT]
                time.sleep(_SETTLES_S if ready else 0)
                _rounds(ready, engine, cells, rounds, seconds, results, say)


def _enter(side: Peer, engine: Running, ready: dict[str, Running], stack: contextlib.ExitStack, results: Results,
           say: Say) -> None:  # fmt: skip
    say(f"starting {side.name}")
    try:
        peers.install(side)
        results.versions[side.name] = peers.version(side)
        ready[side.name] = stack.enter_context(peers.launched(side, engine.url, traffic.MODEL))
    except PeerError as error:
        results.missing[side.name] = str(error)
        say(str(error))


def _rounds(ready: dict[str, Running], engine: Running, cells: Sequence[Workload], rounds: int, seconds: float,
            results: Results, say: Say) -> None:  # fmt: skip
    for number in range(rounds):
        for cell in cells:
            for side, running in ready.items():
                if cell.shape == "rerun" and side != sides.DIRECT and "specgate" not in side:
                    continue  # the others pass the broken call on, so there is nothing to compare
                if f"{side} {cell.name}" in results.missing:
                    continue
                try:
                    measurement = measure(side, running, engine, cell, seconds)
                except PeerError as error:
                    results.missing[f"{side} {cell.name}"] = str(error)
                    say(f"{side}: {error}")
                    continue
                results.measurements.append(measurement)
                say(f"{number + 1}/{rounds} {cell.name} {side}: {measurement.per_s:.0f}/s, "
                    f"{measurement.p50_ms:.2f} ms, CPU {measurement.cpu_ms:.3f} ms")  # fmt: skip
