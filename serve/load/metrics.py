"""The load of the pools, what drafters accept, and requests that load moved, as metrics."""

from collections.abc import Iterable

from opentelemetry import metrics
from opentelemetry.metrics import CallbackOptions, Observation

from serve.load.live_load import LiveLoad


class LoadMetrics:
    """Shows the load as this gateway replica sees it.

    Args:
        meter: Makes the instruments.
        load: The load.
    """

    def __init__(self, meter: metrics.Meter, load: LiveLoad) -> None:
        self._load = load
        meter.create_observable_gauge(
            "specgate.load.requests",
            [self._requests],
            "1",
            "Requests of this gateway replica in a pool, waiting included",
        )
        meter.create_observable_gauge(
            "specgate.acceptance_length",
            [self._lengths],
            "1",
            "Tokens per step that a pool reaches, learned from answers",
        )
        meter.create_observable_gauge(
            "specgate.acceptance_collapsed",
            [self._collapsed],
            "1",
            "1 if drafts are accepted less than half as often as expected",
        )
        meter.create_observable_counter(
            "specgate.load.moves",
            [self._moves],
            "1",
            "Requests that load moved to another pool, or would have (`observe`)",
        )

    def _requests(self, _: CallbackOptions) -> Iterable[Observation]:
        for (model, pool), load in list(self._load.loads.items()):
            yield Observation(load.requests, {"model": model, "pool": pool})

    def _lengths(self, _: CallbackOptions) -> Iterable[Observation]:
        for model, pool, request_class, learned in self._load.learned():
            if learned.answers:
                yield Observation(learned.length, {"model": model, "pool": pool, "request_class": request_class})

    def _collapsed(self, _: CallbackOptions) -> Iterable[Observation]:
        for model, pool, request_class, learned in self._load.learned():
            if learned.answers:
                labels = {"model": model, "pool": pool, "request_class": request_class}
                yield Observation(int(learned.collapsed), labels)

    def _moves(self, _: CallbackOptions) -> Iterable[Observation]:
        for (model, origin, target), count in list(self._load.moves.items()):
            yield Observation(count, {"model": model, "from": origin, "to": target})
