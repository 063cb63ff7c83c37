"""The figures of simulated runs, beside an oracle's."""

from collections.abc import Callable, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from functools import partial
from multiprocessing import get_context
from statistics import quantiles
from typing import Any

from lab.simulation.arms import ARMS
from lab.simulation.oracle import ORACLES
from lab.simulation.request import PROSE
from lab.simulation.simulation import Outcome, Recorded, play
from lab.simulation.site import Site
from lab.simulation.traffic import Traffic
from policies import Policy
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig


def compared(traffic: Traffic, config: GatewayConfig, seed: int = 1, processes: int = 1) -> dict[str, Any]:
    """Plays traffic against every arm and the oracle.

    Args:
        traffic: The requests.
        config: The cluster; its first model serves them.
        seed: Of all random choices.
        processes: Arms that are played at the same time.

    Returns:
        `arms` by name and `oracle`, each with its figures.
    """
    run = partial(_played, traffic, config, compile_for(config), seed)
    names = [*ORACLES, *ARMS]
    if processes > 1:  # forked: an hour of traffic would take seconds to send
        with ProcessPoolExecutor(processes, get_context("fork"), _begin, (run,)) as pool:
            found = dict(zip(names, pool.map(_run, names), strict=True))
    else:
        found = {name: run(name) for name in names}
    best, best_row = max((found[name] for name in ORACLES), key=lambda each: each[0])
    return {
        "arms": {name: _beside(best, *found[name]) for name in ARMS},
        "oracle": _beside(best, best, best_row),
    }


_Run = Callable[[str], tuple[float, dict[str, Any]]]
_run_here: list[_Run] = []  # in a process that plays arms


def _begin(run: _Run) -> None:
    _run_here.append(run)


def _run(arm: str) -> tuple[float, dict[str, Any]]:
    return _run_here[0](arm)


def _played(
    traffic: Traffic, config: GatewayConfig, policy: Policy, seed: int, arm: str
) -> tuple[float, dict[str, Any]]:
    """Returns the throughput of an arm, and its other figures."""
    make_arm = {**ORACLES, **ARMS}[arm]
    outcome = play(Recorded(traffic.fresh()), Site(config, policy), traffic.drafter, make_arm, seed)
    return outcome.tokens_per_s, figures(outcome, outcome.tokens_per_s)


def _beside(best_tokens_per_s: float, tokens_per_s: float, row: Mapping[str, Any]) -> dict[str, Any]:
    return {**row, "ratio_to_oracle": _ratio(tokens_per_s, best_tokens_per_s)}


def _ratio(tokens_per_s: float, best_tokens_per_s: float) -> float:
    return round(tokens_per_s / best_tokens_per_s, 4) if best_tokens_per_s else 1.0


def figures(outcome: Outcome, best_tokens_per_s: float) -> dict[str, Any]:
    """Returns the figures of a run.

    Args:
        outcome: The run.
        best_tokens_per_s: The oracle's throughput.
    """
    duration_s = max(1e-9, outcome.end_s - outcome.began_s)
    calls = sum(request.kind != PROSE for request in outcome.requests)
    per_token = [
        (request.end_s - request.first_s) / (request.output_tokens - 1)
        for request in outcome.requests
        if request.output_tokens > 1
    ]
    return {
        "tokens_per_s": round(outcome.tokens_per_s, 1),
        "ratio_to_oracle": _ratio(outcome.tokens_per_s, best_tokens_per_s),
        "ttft_ms": _percentiles([request.first_s - request.at_s for request in outcome.requests]),
        "tpot_ms": _percentiles(per_token),
        "prefix_hit_rate": round(outcome.hit_rate, 4),
        "clean_calls_per_s": round(calls / duration_s, 3),
        **({"engine_s_per_call": round(outcome.engines * duration_s / calls, 4)} if calls else {}),
        "requests": len(outcome.requests),
        "refused": outcome.refused,
        "forbidden": outcome.forbidden,
    }


def _percentiles(values_s: Sequence[float]) -> Mapping[str, float]:
    """Returns the median and the 99th percentile in milliseconds."""
    if len(values_s) < 2:
        only = round(sum(values_s) * 1e3, 3)
        return {"p50": only, "p99": only}
    cuts = quantiles(values_s, n=100, method="inclusive")
    return {"p50": round(cuts[49] * 1e3, 3), "p99": round(cuts[98] * 1e3, 3)}
