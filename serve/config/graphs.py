"""Steps that no CUDA graph of an engine covers: the price of opting out of speculation, and of full batches."""

from collections.abc import Iterator, Mapping
from typing import Any

from policies import PoolFacts
from policies.vllm_options import full_names
from serve.config.gateway import GatewayConfig

_LARGEST = 512  # vLLM's default, in tokens; Blackwell has 1,024
_LATENT = ("kimi-k2", "kimi-k3", "deepseek-", "glm-5")  # families with MLA, whose backends fall back from full graphs
_PRICE = "one request that opts out makes the steps of its whole batch 1.3 to 3 times as long (ADR 0094)"


def graph_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str]]:
    """Yields (model, pool, what leaves the graphs and what to do) for each hosted vLLM pool."""
    facts = {(each.model, each.pool): each for each in config.pool_facts()}
    for name, model, pool, _ in config.each_pool("vllm"):
        for text in uncovered_steps(facts[name, pool], full_names(model.engine_args_of(pool))):
            yield name, pool, text


def uncovered_steps(facts: PoolFacts, args: Mapping[str, Any]) -> Iterator[str]:
    """Yields what leaves the graphs of a vLLM."""
    graphs = args.get("compilation_config") or {}
    mode = str(graphs.get("cudagraph_mode") or "").lower()
    if not facts.speculative or mode == "none" or str(args.get("enforce_eager", False)).lower() == "true":
        return
    if facts.opt_out and mode != "full":
        latent = (facts.family or "").startswith(_LATENT)
        way_out = (
            "its attention (MLA) has no full graph for such a batch: send these requests to a pool without speculation"
            if latent
            else "set compilation-config: {cudagraph_mode: FULL}, with which it costs nothing"
        )
        yield f"opt_out: {_PRICE}; {way_out}"
    seats, drafts = args.get("max_num_seqs"), facts.num_speculative_tokens
    if isinstance(seats, int) and isinstance(drafts, int) and seats * (1 + drafts) > (largest := _largest(graphs)):
        yield (
            f"max-num-seqs {seats} with {drafts} drafts are {seats * (1 + drafts)} tokens a step, and the largest CUDA "
            f"graph holds {largest}: fuller batches run without one; lower max-num-seqs to {largest // (1 + drafts)}, "
            "or raise max_cudagraph_capture_size in compilation-config"
        )


def _largest(graphs: Mapping[str, Any]) -> int:
    sizes = graphs.get("cudagraph_capture_sizes")
    given = graphs.get("max_cudagraph_capture_size") or (max(sizes) if isinstance(sizes, list) and sizes else None)
    return given if isinstance(given, int) else _LARGEST
