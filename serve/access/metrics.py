"""Keys that will end soon, as a metric: somebody has to make new ones before agents stop."""

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from serve.access.key_ring import KeyRing

SOON_S = 14 * 86_400.0


class KeyMetrics:
    """Shows what one gateway replica knows of keys.

    Args:
        meter: Makes the instrument.
        ring: The keys.
    """

    def __init__(self, meter: Meter, ring: KeyRing) -> None:
        self._ring = ring
        meter.create_observable_gauge("specgate.keys.ending", [self._ending], "1", "Keys that end within 14 days")

    def _ending(self, _: CallbackOptions) -> Iterable[Observation]:
        for source, count in self._ring.ending(SOON_S).items():
            yield Observation(count, {"source": source})
