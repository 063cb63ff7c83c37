"""The figures of simulated runs, beside an oracle's."""

from collections.abc import Mapping, Sequence
from statistics import quantiles
from typing import Any

from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.tools.simulation.arms import ARMS, MakeArm
from serve.tools.simulation.oracle import ORACLES
from serve.tools.simulation.request import PROSE
from serve.tools.simulation.simulation import Outcome, Recorded, play
from serve.tools.simulation.site import Site
from serve.tools.simulation.traffic import Traffic


def compared(traffic: Traffic, config: GatewayConfig, seed: int = 1) -> dict[str, Any]:
    """Plays traffic against every arm and the oracle.

    Args:
        traffic: The requests.
        config: The cluster; its first model serves them.
        seed: Of all random choices.

    Returns:
        `arms` by name and `oracle`, each with its figures.
    """
    policy = compile_for(config)

    def run(make_arm: MakeArm) -> Outcome:
        return play(Recorded(traffic.fresh()), Site(config, policy), traffic.drafter, make_arm, seed)

    best = max((run(make_arm) for make_arm in ORACLES.values()), key=lambda outcome: outcome.tokens_per_s)
    return {
        "arms": {name: figures(run(make_arm), best.tokens_per_s) for name, make_arm in ARMS.items()},
        "oracle": figures(best, best.tokens_per_s),
    }


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
        "ratio_to_oracle": round(outcome.tokens_per_s / best_tokens_per_s, 4) if best_tokens_per_s else 1.0,
        "ttft_ms": _percentiles([request.first_s - request.at_s for request in outcome.requests]),
        "tpot_ms": _percentiles(per_token),
        "prefix_hit_rate": round(outcome.hit_rate, 4),
        "clean_calls_per_s": round(calls / duration_s, 3),
        "engine_s_per_call": round(outcome.engines * duration_s / calls, 4) if calls else None,
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
