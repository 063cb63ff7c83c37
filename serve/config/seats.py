"""Requests that a replica takes beside the sequences that its engine runs at the same time."""

from collections.abc import Iterator

from serve.config.gateway import GatewayConfig
from serve.config.pool import ModelConfig


def engine_seats(model: ModelConfig, pool: str) -> int | None:
    """Returns how many sequences one replica runs at the same time; None if `max-num-seqs` is not stated."""
    settings = model.pools[pool]
    if settings.kind == "sim":
        simulated = settings.sim.get("max_num_seqs")
        return simulated if isinstance(simulated, int) else None
    args = model.engine_args_of(pool)
    seats = args.get("max-num-seqs")
    ranks = args.get("data-parallel-size", 1)
    return seats * ranks if isinstance(seats, int) and isinstance(ranks, int) else None


def seat_findings(config: GatewayConfig) -> Iterator[tuple[str, str, str, str]]:
    """Yields (model, pool, level, message) for every hosted pool with more requests, or fewer, than seats."""
    for name, model, pool, settings in config.each_pool("vllm"):
        seats = engine_seats(model, pool)
        taken = settings.max_ongoing_requests
        if seats is not None and taken > seats:
            text = (
                f"a replica takes {taken} requests and its engine runs {seats}: up to {taken - seats} wait in there, "
                f"even if another pool or replica is idle; set max_ongoing_requests to {seats} (max-num-seqs)"
            )
            yield name, pool, "warning", text
        elif seats is not None and taken < seats:
            text = f"a replica takes {taken} requests, so {seats - taken} of its engine's {seats} seats stay free"
            yield name, pool, "info", text
