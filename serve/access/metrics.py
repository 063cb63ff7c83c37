"""Keys that will end soon, as a metric: somebody has to make new ones before agents stop."""

from serve.access.key_ring import KeyRing
from serve.telemetry.metrics import Metrics

SOON_S = 14 * 86_400.0


def show_keys(metrics: Metrics, ring: KeyRing) -> None:
    """Shows what one gateway replica knows of keys."""
    metrics.read(
        "gauge", "specgate_keys_ending", "Keys that end within 14 days", ["source"],
        lambda: (((source,), count) for source, count in ring.ending(SOON_S).items()),
    )  # fmt: skip
