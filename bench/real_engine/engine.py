"""vLLM's own OpenAI server as a process of its own: what our engine replicas run, without Ray around it.

`vllm serve` does not start from the CPU build's wheel; the application and the engine are the same.
"""

import argparse
from pathlib import Path
from typing import Any

import uvicorn
import uvloop

from bench.gateway import traffic
from bench.peers import Peer, stop_when_told
from serve.config.gateway import GatewayConfig

_LAPTOP = Path(__file__).parents[2] / "deploy" / "laptop.yaml"
_POOLS = ("standard", "speculative")
KEY = "sk-bench"
# `wide` is the tiny model's tokenizer and architecture with some 75 million random weights: a step takes as long as one
# does on a GPU, so that the engine does not send tokens at a rate that no real one has.
SIZES: dict[str, dict[str, Any]] = {
    "tiny": {},
    "wide": {
        "load-format": "dummy",
        "hf-overrides": {
            "hidden_size": 1024, "intermediate_size": 2048, "num_hidden_layers": 8, "num_attention_heads": 16,
            "num_key_value_heads": 8, "head_dim": 64,
        },
    },
}  # fmt: skip


def laptop() -> GatewayConfig:
    """Returns the laptop's configuration: the tiny models, each with a standard and a speculative pool."""
    return GatewayConfig.load(_LAPTOP)


def engine(size: str, pool: str = "standard", model: str = "tiny-qwen") -> Peer:
    """The engine as a process; answers as the model `bench` and asks for the key `sk-bench`.

    Args:
        size: Of the model.
        pool: Of the laptop's configuration, whose engine it is.
        model: Of the same.
    """
    environment = {**laptop().models[model].pools[pool].env, "VLLM_LOGGING_LEVEL": "WARNING"}
    chosen = ("--size", size, "--pool", pool, "--model", model)
    command = ("{bin}/python", "-m", "bench.real_engine.engine", "--port", "{port}", *chosen)
    return Peer(f"{model}-{size}-{pool}", (), command, key=KEY, environment=environment)


async def serve(port: int, size: str, pool: str, model: str) -> None:
    """Answer on 127.0.0.1 until the process is told to end."""
    from serve.engine.vllm import host as vllm_host

    arguments = laptop().models[model].engine_args_of(pool) | SIZES[size]
    started = await vllm_host.start_engine(vllm_host.parse_args(arguments, (traffic.MODEL,), KEY), opt_out=False)
    try:
        # What `serve.http1.listener` says to uvicorn: no line for every request, connections that stay.
        settings = uvicorn.Config(
            started.app, host="127.0.0.1", port=port, log_level="warning", access_log=False, timeout_keep_alive=75
        )
        await uvicorn.Server(settings).serve()
    finally:
        started.shutdown()


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__)
    options.add_argument("--port", type=int, required=True)
    options.add_argument("--size", choices=SIZES, default="tiny")
    options.add_argument("--pool", choices=_POOLS, default="standard", help="of the laptop's, whose engine it is")
    options.add_argument("--model", choices=laptop().models, default="tiny-qwen")
    given = options.parse_args()
    stop_when_told()
    uvloop.run(serve(given.port, given.size, given.pool, given.model))


if __name__ == "__main__":
    main()
