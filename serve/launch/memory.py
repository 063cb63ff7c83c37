"""Estimates the memory of one GPU of a pool: weights, drafter, states, and tokens of KV cache in the rest.

The sizes of a model come from its folder, or from a table of published models. The size of the files and the bytes of
a token are exact (tests/unit/launch/test_memory.py compares them with vLLM's). The assumptions are named below; at
start, vLLM measures the same and prints it as "Available KV cache memory".
"""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from serve.errors import ConfigError

GIB = 2**30

# Name of the custom resource by which a node offers its GPUs -> memory that CUDA reports on one, GiB.
GPU_MEMORY_GIB: Mapping[str, float] = {"h20_96gb": 95.1, "h20_141gb": 139.8, "h200_141gb": 139.8, "h100_80gb": 79.1}

# Assumed, not measured: CUDA context and NCCL's buffers, CUDA graphs, and the peak of activations, in widths of the
# residual stream for each token of the largest batch.
CONTEXT_BYTES = 2.0 * GIB
GRAPHS_BYTES = 1.0 * GIB
ACTIVATION_WIDTHS = 12

_DTYPE_BYTES = {"auto": 2, "bfloat16": 2, "float16": 2, "fp8": 1, "fp8_e4m3": 1, "fp8_e5m2": 1}
_STATE_BYTES = 4  # a recurrent state is kept in float32
_DEFAULTS = {"gpu_memory_utilization": 0.92, "max_num_batched_tokens": 8192, "max_num_seqs": 256}


@dataclass(frozen=True, slots=True)
class Recurrent:
    """Layers with a state of fixed size for each sequence (Gated DeltaNet)."""

    layers: int
    key_heads: int
    value_heads: int
    head_dim: int
    conv_kernel: int


@dataclass(frozen=True, slots=True)
class ModelShape:
    """Sizes of one set of weights.

    Attributes:
        hidden_size: Width of the residual stream.
        layers: Layers with attention over all tokens.
        mla: Values cached per token and layer, on every GPU; None for grouped-query attention.
        kv_heads: Heads of K and of V, divided among the GPUs.
    """

    weights_bytes: float
    hidden_size: int
    layers: int
    mla: int | None = None
    kv_heads: int = 0
    head_dim: int = 0
    recurrent: Recurrent | None = None
    source: str = ""


def shape_of(model: str) -> ModelShape | None:
    """Returns the sizes of a model by its folder or hub name; None if it is neither here nor in the table.

    Raises:
        ConfigError: The folder is here but can't be read as a model.
    """
    folder = Path(model)
    if folder.is_dir():
        return _from_folder(folder)
    return _published().get(folder.name.lower())


def hub_name(model: str) -> str | None:
    """Returns the model hub's name for a folder whose last part is in the table; None if it is not."""
    folder = Path(model).name.lower()
    names = (name for row in _rows() for name in row["hub"])
    return next((name for name in names if name.rsplit("/", 1)[-1].lower() == folder), None)


@cache
def _rows() -> Sequence[Mapping[str, Any]]:
    rows: list[Mapping[str, Any]] = yaml.safe_load((Path(__file__).parent / "models.yaml").read_text(encoding="utf-8"))
    return rows


@cache
def _published() -> Mapping[str, ModelShape]:
    return {name.rsplit("/", 1)[-1].lower(): _row(row) for row in _rows() for name in row["hub"]}


def _row(row: Mapping[str, Any]) -> ModelShape:
    values = {key: value for key, value in row.items() if key not in ("hub", "weights_gb", "recurrent")}
    recurrent = Recurrent(**row["recurrent"]) if "recurrent" in row else None
    return ModelShape(weights_bytes=row["weights_gb"] * 1e9, recurrent=recurrent, **values)


def _from_folder(folder: Path) -> ModelShape:
    try:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        config = {**config, **config.get("text_config", {})}
        weights = sum(file.stat().st_size for file in folder.glob("*.safetensors"))
        if not weights:
            raise ConfigError(f"{folder} holds no *.safetensors")
        return ModelShape(weights, config["hidden_size"], source=f"{folder}/config.json", **_attention(config))
    except (OSError, ValueError, KeyError, AttributeError) as error:
        raise ConfigError(f"{folder} can't be read as a model: {type(error).__name__}: {error}") from error


def _attention(config: Mapping[str, Any]) -> dict[str, Any]:
    layers = int(config["num_hidden_layers"])
    if config.get("kv_lora_rank"):
        return {"layers": layers, "mla": config["kv_lora_rank"] + config["qk_rope_head_dim"]}
    heads = config["num_attention_heads"]
    attention = {
        "kv_heads": config.get("num_key_value_heads") or heads,
        "head_dim": config.get("head_dim") or config["hidden_size"] // heads,
    }
    if not config.get("linear_num_value_heads"):
        return {"layers": layers, **attention}
    kinds = config.get("layer_types") or []
    full = kinds.count("full_attention") if kinds else layers // int(config.get("full_attention_interval") or 4)
    recurrent = Recurrent(
        layers - full,
        config["linear_num_key_heads"],
        config["linear_num_value_heads"],
        config["linear_value_head_dim"],
        config.get("linear_conv_kernel_dim") or 4,
    )
    return {"layers": full, "recurrent": recurrent, **attention}


@dataclass(frozen=True, slots=True)
class Estimate:
    """The estimate for one GPU of one replica, in bytes and in tokens of KV cache.

    Attributes:
        budget: Memory that vLLM may use: the GPU's times `gpu-memory-utilization`.
        reserve: Assumed for context, graphs and activations.
        states: Recurrent states of `max-num-seqs` sequences.
        token_bytes: KV cache of one token on this GPU, the drafter's included.
        kv_tokens: Tokens of KV cache that fit in the rest; 0 if nothing is left.
        max_model_len: Longest request; None if the engine arguments do not state it.
        sequences: `max-num-seqs`.
    """

    budget: float
    weights: float
    drafter: float
    reserve: float
    states: float
    token_bytes: float
    kv_tokens: int
    max_model_len: int | None
    sequences: int

    @property
    def fits(self) -> bool:
        """True if an engine would start: vLLM refuses to if not even one request of the maximal length fits."""
        return self.kv_tokens >= (self.max_model_len or 1)


def estimate(
    engine_args: Mapping[str, Any], model: ModelShape, drafter: ModelShape | None, gpu_bytes: float
) -> Estimate:
    """Estimates the memory of one GPU. The engine's arguments have dashes or underscores."""
    args = {**_DEFAULTS, **{key.replace("-", "_"): value for key, value in engine_args.items()}}
    shards = tensor_parallel(args)
    spec = {str(key).replace("-", "_"): value for key, value in (args.get("speculative_config") or {}).items()}
    draft_shards = int(spec.get("draft_tensor_parallel_size") or shards)
    stages = int(args.get("pipeline_parallel_size") or 1)
    budget = gpu_bytes * float(args["gpu_memory_utilization"])
    weights = model.weights_bytes / shards / stages
    drafted = drafter.weights_bytes / draft_shards if drafter else 0.0
    activations = int(args["max_num_batched_tokens"]) * model.hidden_size * 2 * ACTIVATION_WIDTHS
    reserve = CONTEXT_BYTES + activations + (0.0 if args.get("enforce_eager") else GRAPHS_BYTES)
    sequences = int(args["max_num_seqs"])
    steps = 1 + int(spec.get("num_speculative_tokens") or 0)
    states = sequences * steps * _state_bytes(model.recurrent, shards) / stages if model.recurrent else 0.0
    value_bytes = _DTYPE_BYTES.get(str(args.get("kv_cache_dtype") or "auto"), 2)
    own_head = 1 if spec.get("method") == "mtp" else 0  # the model's own draft head is one more layer with attention
    token_bytes = _token_bytes(model, shards, value_bytes, own_head) / stages
    token_bytes += _token_bytes(drafter, draft_shards, value_bytes) if drafter else 0.0
    left = budget - weights - drafted - reserve - states
    length = args.get("max_model_len")
    return Estimate(
        budget, weights, drafted, reserve, states, token_bytes, max(0, int(left / token_bytes)),
        int(length) if length else None, sequences,
    )  # fmt: skip


def tensor_parallel(engine_args: Mapping[str, Any]) -> int:
    return int(engine_args.get("tensor_parallel_size") or engine_args.get("tensor-parallel-size") or 1)


def _token_bytes(shape: ModelShape, shards: int, value_bytes: int, more_layers: int = 0) -> float:
    layers = shape.layers + more_layers
    if shape.mla is not None:
        return float(layers * shape.mla * value_bytes)  # all heads share the latent: every GPU keeps all of it
    return float(layers * 2 * max(1, shape.kv_heads // shards) * shape.head_dim * value_bytes)


def _state_bytes(recurrent: Recurrent, shards: int) -> float:
    size = recurrent.head_dim
    matrix = recurrent.value_heads * size * size
    window = (2 * recurrent.key_heads + recurrent.value_heads) * size * (recurrent.conv_kernel - 1)
    return recurrent.layers * (matrix + window) * _STATE_BYTES / shards
