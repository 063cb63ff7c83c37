"""The network both stand-ins share, and how it is cut into two model folders.

One network learns both formats at once: copying a value is the same skill in each, only the markers differ. Its
embedding has one row for every byte rank and one for each format's special tokens; a model folder takes its own rows.
"""

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import torch
from safetensors.torch import load_file, save_file
from torch import Tensor
from transformers import Qwen3Config, Qwen3ForCausalLM

from models.vocabulary import BASE_SIZE, QWEN_SPECIAL

KIMI_SPECIAL_COUNT = 256
ROWS = BASE_SIZE + KIMI_SPECIAL_COUNT + len(QWEN_SPECIAL)
MODELS = ("tiny-kimi", "tiny-qwen")
EMBEDDING = "model.embed_tokens.weight"
# head_dim 64 is one that vLLM's CPU attention has a kernel for.
SHAPE = {
    "hidden_size": 256, "intermediate_size": 640, "num_hidden_layers": 4,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
DRAFT_SHAPE = {
    "hidden_size": 192, "intermediate_size": 384, "num_hidden_layers": 2,
    "num_attention_heads": 4, "num_key_value_heads": 2, "head_dim": 64,
}  # fmt: skip
MAX_LENGTH = 4096
_END = {"tiny-kimi": BASE_SIZE + 2, "tiny-qwen": BASE_SIZE + 2}
_PAD = {"tiny-kimi": BASE_SIZE + 255, "tiny-qwen": BASE_SIZE}


def build(shape: dict[str, int]) -> Qwen3ForCausalLM:
    """A fresh network over the rows of both vocabularies."""
    return Qwen3ForCausalLM(Qwen3Config(vocab_size=ROWS, **_settings(shape)))


def _settings(shape: dict[str, int]) -> dict[str, Any]:
    return {
        **shape, "max_position_embeddings": MAX_LENGTH, "tie_word_embeddings": True, "rope_theta": 10_000.0,
        "attention_bias": False, "rms_norm_eps": 1e-6, "hidden_act": "silu",
    }  # fmt: skip


def rows(model: str) -> list[int]:
    """The network's embedding rows that are this model's vocabulary, in the order of its ids."""
    first, count = (0, KIMI_SPECIAL_COUNT) if model == "tiny-kimi" else (KIMI_SPECIAL_COUNT, len(QWEN_SPECIAL))
    return [*range(BASE_SIZE), *range(BASE_SIZE + first, BASE_SIZE + first + count)]


def row_shift(model: str) -> int:
    """Returns the offset from a special token's id to its row in the shared network."""
    return 0 if model == "tiny-kimi" else KIMI_SPECIAL_COUNT


def export(network: Qwen3ForCausalLM, shape: dict[str, int], model: str, folder: Path) -> None:
    """Write one model's weights (bf16) and configuration; a reader of the folder never sees half a file."""
    folder.mkdir(parents=True, exist_ok=True)
    weights = {k: v.detach() for k, v in network.state_dict().items() if k != "lm_head.weight"}
    weights[EMBEDDING] = weights[EMBEDDING][torch.tensor(rows(model))]
    write_weights(weights, folder / "model.safetensors")
    common = {
        "architectures": ["Qwen3ForCausalLM"], "model_type": "qwen3", "vocab_size": len(rows(model)),
        "eos_token_id": _END[model], "pad_token_id": _PAD[model], "bos_token_id": None, "torch_dtype": "bfloat16",
    }  # fmt: skip
    write_json({**common, **_settings(shape)}, folder / "config.json")
    write_json({"eos_token_id": _END[model], "pad_token_id": _PAD[model]}, folder / "generation_config.json")


def restore(network: Qwen3ForCausalLM, folders: Mapping[str, Path]) -> None:
    """Take the weights back from model folders, the inverse of `export`: each brings its own rows of the embedding.

    Args:
        network: As `build` makes it, of the folders' shape; rows that no folder has stay as they are.
        folders: The folder of each model.
    """
    for model, folder in folders.items():
        weights = {k: v.float() for k, v in load_file(folder / "model.safetensors").items()}
        embedding = network.model.embed_tokens.weight.detach().clone()
        embedding[torch.tensor(rows(model))] = weights[EMBEDDING]
        network.load_state_dict({**weights, EMBEDDING: embedding, "lm_head.weight": embedding})


def write_weights(weights: dict[str, Tensor], path: Path) -> None:
    """Save as bf16, in one step from a reader's point of view."""
    partial = path.with_suffix(".partial")
    save_file({k: v.to(torch.bfloat16).contiguous() for k, v in weights.items()}, partial, metadata={"format": "pt"})
    partial.replace(path)


def write_json(value: Any, path: Path) -> None:
    """Save a JSON file the way people read it, in one step from a reader's point of view."""
    partial = path.with_suffix(".partial")
    partial.write_text(json.dumps(value, indent=2) + "\n", "utf-8")
    partial.replace(path)


# An embedding coordinate that is the same for all tokens lets a head look for a place instead of a content.
CONSTANT = 0
CONSTANT_VALUE = 0.1
SHARPNESS = 1.7
PREVIOUS_STRENGTH = 0.06
COPY_STRENGTH = 0.1
PREVIOUS_HEAD = 0
MATCHING_HEADS = (0, 2)  # one for each key-value head


def give_copying_heads(net: Qwen3ForCausalLM) -> None:
    """Silence every layer's output, then give the first two layers the heads that copying is made of.

    A previous-token head (first layer) writes at each position which token came before it; two matching heads (second
    layer) look for places whose previous token is the current one and say what stands there. Networks find this pair by
    themselves after thousands of steps; given it, they copy from the first step on and learn the rest.
    """
    with torch.no_grad():
        for layer in net.model.layers:
            layer.self_attn.o_proj.weight.zero_()
            layer.mlp.down_proj.weight.zero_()
        net.model.embed_tokens.weight[:, CONSTANT] = CONSTANT_VALUE
        size, dim = net.config.hidden_size, net.config.head_dim
        basis = torch.linalg.qr(torch.randn(size - 1, size - 1))[0]
        directions = torch.cat((torch.zeros(size - 1, 1), basis), dim=1)  # none touches the constant coordinate
        read, written = directions[:dim], directions[dim : 2 * dim]
        _previous_token_head(net, read, written)
        slow = _slow_coordinates(dim)
        for number, head in enumerate(MATCHING_HEADS):
            part = slice(number * len(slow), (number + 1) * len(slow))
            copied = directions[number * dim : (number + 1) * dim]
            _matching_head(net, head, number, slow, read[part], written[part], copied)


def _slow_coordinates(dim: int) -> Tensor:
    """The coordinates of a head that rotary embedding hardly turns within a dialogue: only they can hold a content."""
    half = dim // 2
    slow = torch.arange(half - half * 3 // 8, half)
    return torch.cat((slow, slow + half))


def _previous_token_head(net: Qwen3ForCausalLM, read: Tensor, written: Tensor) -> None:
    attention, dim = net.model.layers[0].self_attn, net.config.head_dim
    half = dim // 2
    rates = 10_000.0 ** (-torch.arange(half) / half)
    # A key turned back by one position meets the query of the next position best.
    fast = torch.arange(half // 2)
    query, key = torch.zeros(dim), torch.zeros(dim)
    query[fast] = 1.0
    key[fast], key[fast + half] = rates[fast].cos(), rates[fast].sin()
    rows = slice(PREVIOUS_HEAD * dim, (PREVIOUS_HEAD + 1) * dim)
    for projection, wanted in ((attention.q_proj, query), (attention.k_proj, key)):
        projection.weight[rows] = 0.0
        projection.weight[rows, CONSTANT] = wanted
    attention.v_proj.weight[rows] = read
    attention.o_proj.weight[:, rows] = written.T * PREVIOUS_STRENGTH
    attention.q_norm.weight.fill_(SHARPNESS)
    attention.k_norm.weight.fill_(SHARPNESS)


def _matching_head(
    net: Qwen3ForCausalLM, head: int, kv_head: int, slow: Tensor, read: Tensor, written: Tensor, copied: Tensor
) -> None:
    attention, dim = net.model.layers[1].self_attn, net.config.head_dim
    first, kv_first = head * dim, kv_head * dim
    attention.q_proj.weight[first : first + dim] = 0.0
    attention.k_proj.weight[kv_first : kv_first + dim] = 0.0
    attention.q_proj.weight[first + slow] = read
    attention.k_proj.weight[kv_first + slow] = written
    attention.v_proj.weight[kv_first : kv_first + dim] = copied
    attention.o_proj.weight[:, first : first + dim] = copied.T * COPY_STRENGTH
    attention.q_norm.weight.fill_(SHARPNESS)
    attention.k_norm.weight.fill_(SHARPNESS)
