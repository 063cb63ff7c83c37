"""Sizes of a model that decide its memory: read from its folder, or from a table of published models."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import Any

import yaml

from serve.errors import ConfigError


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
