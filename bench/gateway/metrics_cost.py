"""What metrics cost an answer: `python -m bench.gateway.metrics_cost`.

One process holds two gateway replicas, of which one records nothing. They take turns of some milliseconds, as in
`bench.gateway.in_process`, and each turn is compared with its neighbour. What is read only when somebody scrapes is
timed apart.
"""

from __future__ import annotations

import argparse
import asyncio
import time
from statistics import median
from types import SimpleNamespace
from typing import Any

import yaml

from bench.gateway import sides, traffic
from bench.gateway.in_process_side import Client, Loop
from serve.gateway.ingress import GatewayReplica
from serve.http1.server import protocol_factory
from serve.telemetry.instruments import Telemetry
from serve.telemetry.metrics import Metrics

_ANSWERS = 100  # of a turn
_WARM_UP = 300
_URL = "http://127.0.0.1:1"
_CELLS = "short,stream,tools"
_SCRAPE_PERIOD_S = 15.0  # as deploy/monitoring/prometheus.yaml has it


def _nothing(*_: Any) -> None:
    """Records nothing."""


class Silent(Telemetry):
    """Telemetry that records no metric."""


for method in ("first_token", "waited", "decided", "ended", "history", "retried"):
    setattr(Silent, method, _nothing)


def clients(cells: list[str], telemetry: type[Telemetry]) -> tuple[dict[str, Client], Metrics]:
    """Returns a client for each cell, of one gateway replica, and the replica's metrics.

    Args:
        cells: Names of shapes of requests.
        telemetry: What the replica records with.
    """
    replica = GatewayReplica(yaml.safe_load(sides.REPLICA.config.format(upstream=_URL)), [])
    replica.telemetry.__class__ = telemetry
    if telemetry is Silent:
        replica._count_result = lambda _: None  # type: ignore[assignment]
    create = protocol_factory(replica.hot)
    state = SimpleNamespace(connections=set(), tasks=set())
    asking = {
        cell: Client(traffic.shapes()[cell], lambda: create(SimpleNamespace(loaded_app=None), state, {}))
        for cell in cells
    }
    return asking, replica.telemetry.metrics


async def turn(client: Client) -> float:
    """Returns microseconds of CPU an answer."""
    began_s = time.thread_time()
    await client.ask(_ANSWERS)
    return (time.thread_time() - began_s) / _ANSWERS * 1e6


async def compare(cells: list[str], turns: int) -> None:
    """Prints microseconds an answer with metrics and without, and their ratio, by cell; and what a scrape costs."""
    (recording, metrics), (silent, _) = clients(cells, Telemetry), clients(cells, Silent)
    for cell in cells:
        for each in (recording, silent):
            await each[cell].ask(_WARM_UP)
        pairs = [(await turn(recording[cell]), await turn(silent[cell])) for _ in range(turns)]
        ratio = median(one / other for one, other in pairs)
        ours, theirs = (min(column) for column in zip(*pairs, strict=True))
        print(f"{cell}: with metrics {ours:.0f} us, without {theirs:.0f} us, ratio {ratio:.3f}", flush=True)
    began_s = time.thread_time()
    for _ in range(20):
        text = metrics.exposition()
    scrape_s = (time.thread_time() - began_s) / 20
    share = scrape_s / _SCRAPE_PERIOD_S
    print(f"scrape: {scrape_s * 1000:.1f} ms, {len(text) / 1000:.0f} kB, {share:.2%} of a core every 15 s")


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--cells", default=_CELLS, help=f"comma-separated, of: {','.join(traffic.shapes())}")
    options.add_argument("--turns", type=int, default=60, help="of each replica in each cell")
    given = options.parse_args()
    with asyncio.Runner(loop_factory=lambda: Loop(1)) as runner:
        runner.run(compare(given.cells.split(","), given.turns))


if __name__ == "__main__":
    main()
