"""Streams whose engine has stalled: it sends nothing for a time that its own pace makes improbable."""

from __future__ import annotations

import asyncio
from collections.abc import Callable, Mapping
from dataclasses import dataclass

from serve.config.pool import ModelConfig
from serve.proxy.attempts import Attempt
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.upstream import UpstreamResponse
from serve.request.continuation import obstacle
from serve.telemetry.metrics import Metrics

TICK_S = 1.0
_TIMES = 10  # as long as any silence before: an engine that has many requests is slow, and not gone
_MOST_SAVED = 3.0  # streams that may be given up at once, however many were served before


@dataclass(slots=True)
class _Watched:
    """A stream.

    Attributes:
        request: It answers this.
        silence_s: At the last look.
        longest_s: Of its silences, those that were seen.
    """

    request: RoutedRequest
    response: UpstreamResponse
    silence_s: float = 0.0
    longest_s: float = 0.0

    def improbable(self, least_s: float) -> bool:
        """Looks how long the engine has been silent; returns whether it has stalled.

        Silences shorter than `least_s` are none.
        """
        silence_s = self.response.silence_s
        if silence_s < self.silence_s:  # something has come since
            self.longest_s = max(self.longest_s, self.silence_s)
        self.silence_s = silence_s
        return silence_s >= max(least_s, _TIMES * self.longest_s)


class Stalls:
    """Gives up streams whose engine has stalled, so that somebody goes on with them; a share of all, and no more.

    A stream is given up before another engine is asked: no client has two that write. `has_other` returns whether a
    request has another engine than that of its answer.
    """

    def __init__(
        self, models: Mapping[str, ModelConfig], has_other: Callable[[RoutedRequest], bool], metrics: Metrics
    ) -> None:
        self._models = models
        self._has_other = has_other
        self._count = metrics.counter(
            "specgate_stalled_streams_total",
            "Streams whose engine stalled: given up, or kept because too many were",
            "model",
            "outcome",
        )
        self._saved = dict.fromkeys(models, _MOST_SAVED)
        self._watched: dict[UpstreamResponse, _Watched] = {}
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, request: RoutedRequest, attempt: Attempt) -> None:
        """Watches a stream, if it can go on elsewhere."""
        model, guard = request.decision.model, self._models[request.decision.model].guard
        if not (attempt.response.is_stream and guard.stall_s and guard.heals):
            return
        if attempt.ids is None and (request.guarded or obstacle(request.features, exact=False)):
            return
        self._saved[model] = min(self._saved[model] + guard.stall_share, _MOST_SAVED)
        self._watched[attempt.response] = _Watched(request, attempt.response)
        # At once: of what a thousand streams a second were made of, nothing would be at hand for those after them.
        attempt.response.on_leave = self._watched.pop
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def _look(self) -> None:
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look) if self._watched else None
        for each in self._watched.values():
            model = each.request.decision.model
            if not (each.improbable(self._models[model].guard.stall_s) and self._has_other(each.request)):
                continue
            may = self._saved[model] >= 1
            self._count(model, "given_up" if may else "kept").inc()
            if may:
                self._saved[model] -= 1
                each.response.give_up()
            else:
                each.longest_s = each.silence_s  # counted once
