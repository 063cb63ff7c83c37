"""What one gateway replica sees of the pools, for the board of the operator's door."""

import time
from collections import deque
from collections.abc import Iterable, Mapping
from typing import Any

from prometheus_client import REGISTRY

from serve.config.gateway import GatewayConfig
from serve.gateway.pools import PoolKey
from serve.guard.attempt_result import AttemptResult
from serve.routing.pool import Pool

_SHOWN = frozenset(
    {
        "specgate_requests",
        "specgate_decisions",
        "specgate_time_to_first_token_seconds",
        "specgate_acceptance_length",
    }
)
_RERUNS = 50
_MAX_DEFECTS = 4
_MAX_TEXT = 200


class Reruns:
    """The last attempts that were rerun, by their shape: nothing of an answer but the names of its tools."""

    def __init__(self) -> None:
        self._last: deque[dict[str, Any]] = deque(maxlen=_RERUNS)

    def __call__(self, result: AttemptResult) -> None:
        """Remembers an attempt if another one follows it."""
        if result.final is not None:
            return
        self._last.append(
            {
                "at_s": round(time.time()),
                "model": result.model,
                "pool": result.pool,
                "request_class": result.request_class,
                "outcome": str(result.verdict.outcome),
                "defects": [defect.detail[:_MAX_TEXT] for defect in result.verdict.defects[:_MAX_DEFECTS]],
                "attempt": result.attempt,
                "request_id": result.request_id,
            }
        )

    def newest_first(self) -> list[dict[str, Any]]:
        """Returns them."""
        return list(self._last)[::-1]


def sight(
    config: GatewayConfig,
    pools: Mapping[PoolKey, Pool],
    policy: Mapping[str, Any],
    cells: Iterable[Mapping[str, Any]],
    reruns: Reruns,
) -> dict[str, Any]:
    """Returns what this replica knows, as plain values. The door alone gets it: keys of engines are among them.

    Args:
        config: The gateway's configuration.
        pools: All pools.
        policy: Digest of the policy in force, and why the last update was refused.
        cells: The state of quarantine.
        reruns: The last ones.
    """
    return {
        "policy": policy,
        "pools": [_pool(model, name, settings, pools[model, name]) for model, _, name, settings in config.each_pool()],
        "cells": list(cells),
        "reruns": reruns.newest_first(),
        "samples": [
            (sample.name, sample.labels, sample.value)
            for family in REGISTRY.collect()
            if family.name in _SHOWN
            for sample in family.samples
            if not sample.name.endswith("_created")
        ],
    }


def _pool(model: str, name: str, settings: Any, pool: Pool) -> dict[str, Any]:
    occupancy = pool.occupancy()
    return {
        "model": model,
        "pool": name,
        "kind": settings.kind,
        "may_sleep": settings.autoscaling is not None and settings.autoscaling.min_replicas == 0,
        "slots": occupancy.slots,
        "held": occupancy.held,
        "waiting": occupancy.waiting,
        "engines": [{"url": engine.url, "key": engine.key} for engine in occupancy.engines],
    }
