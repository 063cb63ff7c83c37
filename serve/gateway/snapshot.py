"""One gateway replica's snapshot of the pools, for the board of the admin API."""

import time
from collections import Counter, deque
from collections.abc import Iterable, Mapping
from dataclasses import asdict
from typing import Any

from policies import PoolFacts
from serve import VERSION
from serve.config.gateway import GatewayConfig
from serve.gateway.parts import Quarantine
from serve.gateway.pools import PoolKey, Scale
from serve.guard.attempt_result import AttemptResult
from serve.limits.request_limits import Standing
from serve.proxy.journal import Journal
from serve.routing.pool import Pool
from serve.telemetry.metrics import Metrics

_SHOWN = frozenset(
    {
        "specgate_requests_total",
        "specgate_decisions_total",
        "specgate_time_to_first_token_seconds",
        "specgate_tokens_total",
        "specgate_limits_refused_total",
        "specgate_limits_used_total",
        "specgate_errors_total",
        "specgate_answer_tokens_total",
        "specgate_answer_seconds_total",
        "specgate_verdicts_total",
        "specgate_answers_total",
    }
)
_FACTS = ("method", "num_speculative_tokens", "drafter", "engine", "engine_version", "opt_out")
_RERUNS = 50
_FAILURES = 20
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
        return list(self._last)[::-1]


def snapshot(
    config: GatewayConfig,
    scale: Scale,
    pools: Mapping[PoolKey, Pool],
    policy: Mapping[str, Any],
    quarantine: Quarantine,
    reruns: Reruns,
    journal: Journal,
    facts: Iterable[PoolFacts],
    standings: Iterable[Standing],
    metrics: Metrics,
    shadows: list[dict[str, Any]],
    drafts: list[dict[str, Any]],
) -> dict[str, Any]:
    """Returns what this replica knows, as plain values. The admin API alone gets it: keys of engines are among them.

    `policy` is the digest of the one in force, and why the last update was refused.
    """
    known = {(each.model, each.pool): each for each in facts}
    return {
        "version": VERSION,
        "policy": policy,
        "pools": [
            {
                **_pool(model, name, settings.kind, scale.may_sleep(model, name), pools[model, name]),
                "facts": _facts(known.get((model, name))),
            }
            for model, _, name, settings in config.each_pool()
        ],
        "cells": quarantine.cells(),
        "changes": quarantine.changes(),
        "reruns": reruns.newest_first(),
        "failures": [each.to_dict() for each in journal.failures(_FAILURES)],
        "unknown_models": journal.unknown_models(),
        "counts_usage": config.counts_usage,
        "rerun_content": config.admin.rerun_content,
        "tenants": [_tenant(standing) for standing in standings],
        "queue": _queue(pools.values()),
        "shadows": shadows,
        "drafts": drafts,
        "samples": list(metrics.collect(_SHOWN)),
    }


def _facts(facts: PoolFacts | None) -> dict[str, Any]:
    """Returns what the page says of a pool's speculation and engine; empty if the policy does not know the pool."""
    if facts is None:
        return {}
    until = facts.qualification and str(facts.qualification.expires)
    return {**{name: getattr(facts, name) for name in _FACTS}, "qualified_until": until}


def _queue(pools: Iterable[Pool]) -> dict[str, int]:
    """Returns how many requests wait, by tenant."""
    waiting = Counter[str]()
    for pool in pools:
        for (tenant, _priority), count in pool.occupancy().queue.items():
            waiting[tenant] += count
    return dict(waiting)


def _tenant(standing: Standing) -> dict[str, Any]:
    limits = {name: value for name, value in asdict(standing.limits).items() if value is not None}
    return {"tenant": standing.tenant, "limits": limits, "in_use": standing.in_use, "spent": standing.spent}


def _pool(model: str, name: str, kind: str, may_sleep: bool, pool: Pool) -> dict[str, Any]:
    occupancy = pool.occupancy()
    return {
        "model": model,
        "pool": name,
        "kind": kind,
        "may_sleep": may_sleep,
        "slots": occupancy.slots,
        "held": occupancy.held,
        "waiting": occupancy.waiting,
        "engines": [{"url": engine.url, "key": engine.key} for engine in occupancy.engines],
    }
