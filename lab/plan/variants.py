"""Plays traffic against splits of a model's replicas, and finds the one that serves it with the fewest GPUs."""

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from lab.simulation.arms import routing, specgate
from lab.simulation.figures import figures
from lab.simulation.simulation import Recorded, play
from lab.simulation.site import Site, economics_of
from lab.simulation.traffic import Traffic
from policies import Policy
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig
from serve.errors import ConfigError

_KINDS = {True: "with a drafter", False: "without a drafter"}


@dataclass(frozen=True, slots=True)
class Targets:
    """The targets that served traffic must meet.

    Attributes:
        ttft_p99_ms: Longest time to the first token, of 99 in 100 requests.
        tpot_p99_ms: Longest time per token after it, likewise.
    """

    ttft_p99_ms: float = 2000.0
    tpot_p99_ms: float = 100.0


@dataclass(frozen=True, slots=True)
class Split:
    """Replicas with a drafter, replicas without, and the draft length."""

    speculative: int
    standard: int
    drafts: int


def planned(traffic: Traffic, config: GatewayConfig, targets: Targets, most_gpus: int) -> dict[str, Any]:
    """Returns every variant that was played, from few GPUs to many, and the best one.

    Args:
        traffic: The requests.
        config: Its first model's first pool with a drafter and first pool without one are what is varied.
        targets: What must be reached.
        most_gpus: Where to give up.

    Raises:
        ConfigError: The model has neither kind of pool.
    """
    model = next(iter(config.models))
    pools = _pools(config, model)
    gpus = {drafts: gpus_of(config.models[model], pool) for drafts, pool in pools.items()}
    lengths = draft_lengths(config)
    policies: dict[tuple[bool, bool, int], Policy] = {}
    rows: list[dict[str, Any]] = []
    for total in range(1, most_gpus + 1):
        for split in splits(total, gpus, lengths):
            varied = routing(_varied(config, model, pools, split))
            key = (split.speculative > 0, split.standard > 0, split.drafts)
            policy = policies.get(key) or policies.setdefault(key, compile_for(varied))
            rows.append({"gpus": total, **_played(traffic, Site(varied, policy), split, targets)})
        serving = [row for row in rows if row["serves"]]
        if serving:
            return {"model": model, "variants": rows, "best": min(serving, key=lambda row: _used(row, targets))}
    return {"model": model, "variants": rows, "best": None}


def _used(row: Mapping[str, Any], targets: Targets) -> float:
    """Returns how much of both targets together a variant uses: what is chosen by, among equally many GPUs."""
    return float(row["ttft_ms"]["p99"] / targets.ttft_p99_ms + row["tpot_ms"]["p99"] / targets.tpot_p99_ms)


def draft_lengths(config: GatewayConfig) -> Sequence[int]:
    """Returns the draft lengths that are tried: those that step times are known at, and the one that is configured.

    Args:
        config: The first model's first pool with a drafter counts.
    """
    model = next(iter(config.models))
    pool = _pools(config, model).get(True)
    if pool is None:
        return ()
    configured = (
        facts.num_speculative_tokens for facts in config.pool_facts() if (facts.model, facts.pool) == (model, pool)
    )
    known = economics_of(config.models[model].pools[pool]).step_times.drafts
    return sorted({drafts for drafts in (*known, *configured) if drafts})


def splits(gpus: int, per_replica: Mapping[bool, int], lengths: Sequence[int]) -> Iterator[Split]:
    """Yields every way to spend so many GPUs.

    Args:
        gpus: All of them are used.
        per_replica: GPUs of a replica, with drafter (True) and without (False), as far as there are such pools.
        lengths: Draft lengths to try.
    """
    fast, plain = per_replica.get(True), per_replica.get(False)
    for speculative in range(gpus // fast + 1 if fast else 1):
        rest = gpus - speculative * (fast or 0)
        if rest and (plain is None or rest % plain):
            continue
        for drafts in lengths if speculative else (0,):
            yield Split(speculative, rest // plain if plain else 0, drafts)


def gpus_of(model: ModelConfig, pool: str) -> int:
    """Returns the GPUs of one replica: what its engine's parallelism takes; 1 if nothing is said of it."""
    args = model.engine_args_of(pool)
    sizes = (args.get(f"{kind}-parallel-size", 1) for kind in ("tensor", "pipeline", "data"))
    found = 1
    for size in sizes:
        found *= int(size)
    return found


def _pools(config: GatewayConfig, model: str) -> dict[bool, str]:
    """Returns the pools that are varied: the first with a drafter (True), and the first without one (False)."""
    found: dict[bool, str] = {}
    for facts in config.pool_facts():
        if facts.model == model:
            found.setdefault(facts.speculative, facts.pool)
    if not found:
        raise ConfigError(f"{model} has no pools")
    return found


def _varied(config: GatewayConfig, model: str, pools: Mapping[bool, str], split: Split) -> GatewayConfig:
    settings = config.models[model]
    varied = {}
    for drafts, replicas in ((True, split.speculative), (False, split.standard)):
        if replicas:
            pool = settings.pools[pools[drafts]]
            changes: dict[str, Any] = {"replicas": replicas, "canary_share": None}
            if drafts:
                changes["facts"] = {**pool.facts, "num_speculative_tokens": split.drafts}
            varied[pools[drafts]] = pool.model_copy(update=changes)
    overrides = tuple(
        each for each in config.policy.overrides if any(each.speaks_of(model, pool) for pool in varied)
    )  # of other models, or of pools that this variant lacks
    policy = config.policy.model_copy(update={"overrides": overrides})
    return config.model_copy(
        update={"models": {model: settings.model_copy(update={"pools": varied})}, "policy": policy}
    )


def _played(traffic: Traffic, site: Site, split: Split, targets: Targets) -> dict[str, Any]:
    outcome = play(Recorded(traffic.fresh()), site, traffic.drafter, specgate, seed=1)
    row = figures(outcome, outcome.tokens_per_s)
    del row["ratio_to_oracle"]
    serves = (
        not outcome.refused
        and row["ttft_ms"]["p99"] <= targets.ttft_p99_ms
        and row["tpot_ms"]["p99"] <= targets.tpot_p99_ms
    )
    return {
        "speculative": split.speculative,
        "standard": split.standard,
        "draft_length": split.drafts,
        "serves": serves,
        **row,
    }


def assumptions(config: GatewayConfig, targets: Targets) -> Sequence[str]:
    """Returns what a plan takes for granted."""
    model = next(iter(config.models))
    measured = any(pool.sim.get("economics", {}).get("step_times") for pool in config.models[model].pools.values())
    surface = (
        "step times are those of the configuration"
        if measured
        else "step times are the published ones of an 8B dense model with EAGLE (vllm#32374), not measured on your GPUs"
    )
    lengths = ", ".join(f"{drafts}" for drafts in draft_lengths(config))
    tried = [f"draft lengths tried: {lengths}; those that the table of step times lacks lie between its own"]
    missing = [kind for drafts, kind in _KINDS.items() if drafts not in _pools(config, model)]
    return (
        *(f"{model} gets no replica {kind}, since it has no such pool" for kind in missing),
        surface,
        *(tried if lengths else ()),
        "prefill computes 20,000 tokens a second and KV memory holds 400,000, unless a simulated pool states others",
        "drafts are accepted as the traffic file says, else as on model cards (at 3 drafts: tools 3.7 tokens a step, "
        "JSON 3.3, prose 2.5)",
        "the gateway routes with `policy.load: route`; the advisories in force decide what may speculate",
        f"served means a p99 of at most {targets.ttft_p99_ms:g} ms to the first token and {targets.tpot_p99_ms:g} ms a "
        "token, and no request refused",
        "the fewest GPUs that serve, and of equally many the split that uses least of both targets together "
        "(p99 / target of the first token, plus p99 / target a token)",
    )
