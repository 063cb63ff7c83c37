"""Streams whose engine has stalled: it sends nothing for a time that its own pace makes improbable."""

from __future__ import annotations

import asyncio
from collections.abc import Mapping
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
        silence_s: At the last look.
        longest_s: Of its silences, those that were seen.
    """

    response: UpstreamResponse
    model: str
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

    A stream is given up before another engine is asked: no client has two that write.
    """

    def __init__(self, models: Mapping[str, ModelConfig], metrics: Metrics) -> None:
        self._models = models
        self._count = metrics.counter(
            "specgate_stalled_streams_total",
            "Streams whose engine stalled: given up, or kept because too many were",
            "model",
            "outcome",
        )
        self._saved = dict.fromkeys(models, _MOST_SAVED)
        self._watched: list[_Watched] = []
        self._timer: asyncio.TimerHandle | None = None

    def watch(self, request: RoutedRequest, attempt: Attempt) -> None:
        """Watches a stream, if another candidate can go on with it."""
        model, guard = request.decision.model, self._models[request.decision.model].guard
        other = len(request.decision.candidates) > 1
        if not (attempt.response.is_stream and other and guard.stall_s and guard.heals):
            return
        if attempt.ids is None and (request.guarded or obstacle(request.features, exact=False)):
            return
        self._saved[model] = min(self._saved[model] + guard.stall_share, _MOST_SAVED)
        self._watched.append(_Watched(attempt.response, model))
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look)

    def _look(self) -> None:
        self._watched = [each for each in self._watched if not each.response.left]
        self._timer = asyncio.get_running_loop().call_later(TICK_S, self._look) if self._watched else None
        stalled = [each for each in self._watched if each.improbable(self._models[each.model].guard.stall_s)]
        for each in stalled:
            may = self._saved[each.model] >= 1
            self._count(each.model, "given_up" if may else "kept").inc()
            if may:
                self._saved[each.model] -= 1
                each.response.give_up()
            else:
                each.longest_s = each.silence_s  # counted once
