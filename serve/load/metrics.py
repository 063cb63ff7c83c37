"""The load of the pools, what drafters accept, and requests that load moved, as metrics."""

from collections.abc import Callable, Iterator

from policies.acceptance import Acceptance
from serve.load.live_load import LiveLoad
from serve.telemetry.metrics import Metrics, Reading


def show_load(metrics: Metrics, load: LiveLoad) -> None:
    """Shows the load as one gateway replica sees it."""

    def learned(value: Callable[[Acceptance], float]) -> Reading:
        def read() -> Iterator[tuple[tuple[str, str, str], float]]:
            for model, pool, request_class, known in load.learned():
                if known.answers:
                    yield (model, pool, request_class), value(known)

        return read

    cell = ("model", "pool", "request_class")
    metrics.read(
        "gauge",
        "specgate_load_requests",
        "Requests of this gateway replica in a pool, waiting included",
        ["model", "pool"],
        lambda: ((key, each.requests) for key, each in load.loads.items()),
    )
    metrics.read(
        "gauge",
        "specgate_acceptance_length",
        "Tokens per step that a pool reaches, learned from answers",
        cell,
        learned(lambda known: known.length),
    )
    metrics.read(
        "gauge",
        "specgate_acceptance_collapsed",
        "1 if drafts are accepted less than half as often as expected",
        cell,
        learned(lambda known: float(known.collapsed)),
    )
    metrics.read(
        "counter", "specgate_load_moves_total", "Requests that load moved to another pool, or would have (`observe`)",
        ["model", "from", "to"], load.moves.items,
    )  # fmt: skip
