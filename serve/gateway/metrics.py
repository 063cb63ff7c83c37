"""Metrics of one gateway replica's pools and of itself, which cost a request nothing."""

import asyncio
import time
from collections import Counter
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from serve.config.access import PRIORITIES
from serve.gateway.pools import PoolKey
from serve.gateway.scale import Scale
from serve.http1.allowance import Allowance
from serve.routing.pool import Occupancy, Pool

_LAG_PERIOD_S = 0.25
_LAG_BUCKETS_S = (0.001, 0.0025, 0.005, 0.01, 0.025, 0.05, 0.1, 0.25, 0.5, 1, 2.5, 5)


@dataclass(frozen=True, slots=True)
class Vitals:
    """The state of a replica besides its pools.

    Attributes:
        allowance: Counts the bytes of requests' bodies.
        refused_update: Returns why the last update of the policy was refused; None if it was adopted.
        detector_age_s: Returns the seconds since the shared detector of quarantine last answered; None without one.
    """

    allowance: Allowance
    refused_update: Callable[[], str | None]
    detector_age_s: Callable[[], float] | None


class ReplicaMetrics:
    """Shows the occupancy of every pool, and how the replica itself is.

    Args:
        meter: Makes the instruments.
        scale: Says how many replicas each pool should have.
        pools: All pools.
        vitals: The rest.
    """

    def __init__(self, meter: Meter, scale: Scale, pools: Mapping[PoolKey, Pool], vitals: Vitals) -> None:
        self._scale = scale
        self._pools = pools
        self._vitals = vitals
        gauge = meter.create_observable_gauge
        gauge("specgate.pool.replicas", [self._replicas], "1", "Replicas that run; of a remote pool, its URL")
        gauge("specgate.pool.replicas_wanted", [self._wanted], "1", "Replicas that should run at least, as configured")
        gauge("specgate.pool.slots", [self._slots], "1", "Requests that a pool takes at a time, from all replicas")
        gauge("specgate.pool.slots_held", [self._held], "1", "Slots that this gateway replica holds")
        gauge("specgate.pool.waiting", [self._waiting], "1", "Requests of this gateway replica that wait for a slot")
        gauge("specgate.request.bodies", [self._bodies], "By", "Bytes of requests' bodies that are held")
        gauge("specgate.policy.update_refused", [self._update_refused], "1", "1 if the last update was refused")
        if vitals.detector_age_s is not None:
            gauge("specgate.detector.age", [self._age], "s", "Time since the detector of quarantine last answered")
        self._lag = meter.create_histogram(
            "specgate.event_loop.lag", "s", "How late the event loop runs what is due",
            explicit_bucket_boundaries_advisory=_LAG_BUCKETS_S,
        )  # fmt: skip

    async def watch_loop(self) -> None:
        """Measures the event loop for ever, four times a second."""
        while True:
            due_s = time.monotonic() + _LAG_PERIOD_S
            await asyncio.sleep(_LAG_PERIOD_S)
            self.loop_lagged(max(0.0, time.monotonic() - due_s))

    def loop_lagged(self, lag_s: float) -> None:
        """Records how late the event loop was."""
        self._lag.record(lag_s)

    def _replicas(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._each(lambda occupancy: len(occupancy.engines))

    def _wanted(self, _: CallbackOptions) -> Iterable[Observation]:
        for (model, name), least in self._scale.each():
            yield Observation(least, {"model": model, "pool": name})

    def _slots(self, _: CallbackOptions) -> Iterable[Observation]:
        for (model, name), pool in self._pools.items():
            if (slots := pool.occupancy().slots) is not None:
                yield Observation(slots, {"model": model, "pool": name})

    def _held(self, _: CallbackOptions) -> Iterable[Observation]:
        return self._each(lambda occupancy: occupancy.held)

    def _waiting(self, _: CallbackOptions) -> Iterable[Observation]:
        for (model, name), pool in self._pools.items():
            waiting = Counter[str]()
            for (_tenant, priority), count in pool.occupancy().queue.items():
                waiting[priority] += count
            for priority in PRIORITIES:
                yield Observation(waiting[priority], {"model": model, "pool": name, "priority": priority})

    def _each(self, value: Callable[[Occupancy], int]) -> Iterable[Observation]:
        for (model, name), pool in self._pools.items():
            yield Observation(value(pool.occupancy()), {"model": model, "pool": name})

    def _bodies(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._vitals.allowance.held_bytes)

    def _update_refused(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(int(self._vitals.refused_update() is not None))

    def _age(self, _: CallbackOptions) -> Iterable[Observation]:
        assert self._vitals.detector_age_s is not None
        yield Observation(self._vitals.detector_age_s())
