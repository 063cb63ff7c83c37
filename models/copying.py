"""Starts a network with the attention heads that copying is made of, instead of waiting for them to form.

A previous-token head (first layer) writes at each position which token came before it; two matching heads (second
layer) look for places whose previous token is the current one and say what stands there. Networks find this pair by
themselves after thousands of steps; given it, they copy from the first step on and learn the rest.
"""

import torch
from torch import Tensor
from transformers import Qwen3ForCausalLM

# An embedding coordinate that is the same for all tokens lets a head look for a place instead of a content.
CONSTANT = 0
CONSTANT_VALUE = 0.1
SHARPNESS = 1.7
PREVIOUS_STRENGTH = 0.06
COPY_STRENGTH = 0.1
PREVIOUS_HEAD = 0
MATCHING_HEADS = (0, 2)  # one for each key-value head


def give_copying_heads(net: Qwen3ForCausalLM) -> None:
    """Silence every layer's output, then give the first two layers their heads."""
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
