"""Metrics of one gateway replica's pools and of itself, which cost a request nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterator, Mapping

from serve.config.access import PRIORITIES
from serve.gateway.pools import PoolKey, Scale
from serve.http1.allowance import Allowance
from serve.routing.pool import Occupancy, Pool
from serve.telemetry.metrics import Metrics, Reading

_LAG_PERIOD_S = 0.25
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


class ReplicaMetrics:
    """Shows the occupancy of every pool, and how the replica itself is. `refused_update` is None if the last one was
    adopted, the age of the advisories if nobody has said it; failures are by the names of parts.
    """

    def __init__(
        self,
        metrics: Metrics,
        scale: Scale,
        pools: Mapping[PoolKey, Pool],
        allowance: Allowance,
        refused_update: Callable[[], str | None],
        advisories_age_days: Callable[[], int | None],
        failures: Mapping[str, int],
    ) -> None:
        def each(value: Callable[[Occupancy], int | None]) -> Reading:
            return lambda: (
                (key, number) for key, pool in pools.items() if (number := value(pool.occupancy())) is not None
            )

        def age() -> Iterator[tuple[tuple[()], float]]:
            if (days := advisories_age_days()) is not None:
                yield (), float(days)

        def waiting() -> Iterator[tuple[tuple[str, str, str], float]]:
            for (model, name), pool in pools.items():
                counts = Counter[str]()
                for (_tenant, priority), count in pool.occupancy().queue.items():
                    counts[priority] += count
                yield from (((model, name, priority), counts[priority]) for priority in PRIORITIES)

        of_a_pool = ("model", "pool")
        for name, description, labels, reading in (
            (
                "specgate_pool_replicas", "Replicas that run; of a remote pool, its URL", of_a_pool,
                each(lambda occupancy: len(occupancy.engines)),
            ),
            (
                "specgate_pool_replicas_wanted", "Replicas that should run at least, as configured", of_a_pool,
                scale.each,
            ),
            (
                "specgate_pool_slots", "Requests that a pool takes at a time, from all replicas", of_a_pool,
                each(lambda occupancy: occupancy.slots),
            ),
            (
                "specgate_pool_slots_held", "Slots that this gateway replica holds", of_a_pool,
                each(lambda occupancy: occupancy.held),
            ),
            (
                "specgate_pool_waiting", "Requests of this gateway replica that wait for a slot",
                (*of_a_pool, "priority"), waiting,
            ),
            (
                "specgate_request_bodies_bytes", "Bytes of requests' bodies that are held", (),
                lambda: [((), allowance.held_bytes)],
            ),
            (
                "specgate_policy_update_refused", "1 if the last update was refused", (),
                lambda: [((), float(refused_update() is not None))],
            ),
            (
                "specgate_advisories_age_days", "Days since the least recently checked advisory was checked", (), age,
            ),
        ):  # fmt: skip
            metrics.read("gauge", name, description, labels, reading)
        metrics.read(
            "counter", "specgate_background_failures_total", "Failures of background tasks, which restart",
            ("part",), lambda: [((part,), float(count)) for part, count in failures.items()],
        )  # fmt: skip
        self._lag = metrics.histogram("specgate_event_loop_lag_seconds", "How late the event loop is", _LAG_BUCKETS_S)

    async def run(self) -> None:
        """Measures the event loop for ever, four times a second."""
        while True:
            due_s = time.monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self.loop_lagged(max(0.0, time.monotonic() - due_s))

    def loop_lagged(self, lag_s: float) -> None:
        """Records how late the event loop was."""
        self._lag(lag_s)
