"""Trains tiny-kimi's EAGLE3 head on the target's own hidden states: `python -m models.eagle`."""

import argparse
import math
import time
from pathlib import Path

import torch
from safetensors.torch import load_file
from torch import Tensor, nn
from torch.nn import functional
from transformers import Qwen3ForCausalLM

from models.batches import Batch, batches
from models.network import MAX_LENGTH, SHAPE, write_json, write_weights
from models.train import ROOT, ahead, optimizers, set_rate

TARGET = ROOT / "tiny-kimi"
FOLDER = ROOT / "tiny-kimi-eagle3"
# After these layers the target's hidden states are taken; the target is too thin for vLLM's own choice.
TARGET_LAYERS = (2, 3, 4)
INTERMEDIATE = 512
# How much each drafted position counts; the later ones see the head's own hidden states instead of the target's.
STEP_WEIGHTS = (1.0, 0.7, 0.5)
EPSILON = 1e-6
THETA = 10_000.0


class RmsNorm(nn.Module):  # type: ignore[misc]
    def __init__(self, size: int) -> None:
        super().__init__()
        self.weight = nn.Parameter(torch.ones(size))

    def forward(self, x: Tensor) -> Tensor:
        return functional.rms_norm(x, x.shape[-1:], self.weight.to(x.dtype), EPSILON)


class Attention(nn.Module):  # type: ignore[misc]
    """Llama's attention over the token's embedding and the hidden state side by side."""

    def __init__(self) -> None:
        super().__init__()
        size, dim = SHAPE["hidden_size"], SHAPE["head_dim"]
        self.heads, self.kv_heads, self.dim = SHAPE["num_attention_heads"], SHAPE["num_key_value_heads"], dim
        self.q_proj = nn.Linear(2 * size, self.heads * dim, bias=False)
        self.k_proj = nn.Linear(2 * size, self.kv_heads * dim, bias=False)
        self.v_proj = nn.Linear(2 * size, self.kv_heads * dim, bias=False)
        self.o_proj = nn.Linear(self.heads * dim, size, bias=False)

    def forward(self, x: Tensor, first_position: int) -> Tensor:
        batch, length, _ = x.shape
        q = self.q_proj(x).view(batch, length, self.heads, self.dim).transpose(1, 2)
        k = self.k_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        v = self.v_proj(x).view(batch, length, self.kv_heads, self.dim).transpose(1, 2)
        q, k = rotated(q, first_position), rotated(k, first_position)
        mixed = functional.scaled_dot_product_attention(q, k.to(q.dtype), v, is_causal=True, enable_gqa=True)
        return self.o_proj(mixed.transpose(1, 2).reshape(batch, length, -1))


def rotated(x: Tensor, first_position: int) -> Tensor:
    """Rotary position embedding, halves side by side."""
    half = x.shape[-1] // 2
    rates = THETA ** (-torch.arange(half) / half)
    angles = torch.outer(torch.arange(x.shape[-2]) + first_position, rates)
    cos, sin = angles.cos().to(x.dtype), angles.sin().to(x.dtype)
    a, b = x[..., :half], x[..., half:]
    return torch.cat((a * cos - b * sin, b * cos + a * sin), dim=-1)


class Mlp(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        self.gate_proj = nn.Linear(SHAPE["hidden_size"], INTERMEDIATE, bias=False)
        self.up_proj = nn.Linear(SHAPE["hidden_size"], INTERMEDIATE, bias=False)
        self.down_proj = nn.Linear(INTERMEDIATE, SHAPE["hidden_size"], bias=False)

    def forward(self, x: Tensor) -> Tensor:
        return self.down_proj(functional.silu(self.gate_proj(x)) * self.up_proj(x))


class Layer(nn.Module):  # type: ignore[misc]
    def __init__(self) -> None:
        super().__init__()
        size = SHAPE["hidden_size"]
        self.hidden_norm, self.input_layernorm = RmsNorm(size), RmsNorm(size)
        self.post_attention_layernorm = RmsNorm(size)
        self.self_attn, self.mlp = Attention(), Mlp()

    def forward(self, embedded: Tensor, hidden: Tensor, first_position: int) -> Tensor:
        joined = torch.cat((self.input_layernorm(embedded), self.hidden_norm(hidden)), dim=-1)
        hidden = hidden + self.self_attn(joined, first_position)
        return hidden + self.mlp(self.post_attention_layernorm(hidden))


class Head(nn.Module):  # type: ignore[misc]
    """The EAGLE3 head, its parameters named as vLLM's `LlamaForCausalLMEagle3` loads them."""

    def __init__(self, embedding: Tensor) -> None:
        super().__init__()
        size = SHAPE["hidden_size"]
        self.fc = nn.Linear(len(TARGET_LAYERS) * size, size, bias=False)
        self.midlayer = Layer()
        self.norm = RmsNorm(size)
        self.lm_head = nn.Linear(size, embedding.shape[0], bias=False)
        self.lm_head.weight.data.copy_(embedding)

    def forward(self, embedded: Tensor, hidden: Tensor, first_position: int) -> tuple[Tensor, Tensor]:
        """Return the logits of the token after the next, and the hidden states that the next draft goes on from."""
        hidden = self.midlayer(embedded, hidden, first_position)
        return self.lm_head(self.norm(hidden)), hidden


class Target:
    """The trained model; returns its hidden states after the chosen layers and its own choice at each position."""

    def __init__(self) -> None:
        self.model = Qwen3ForCausalLM.from_pretrained(TARGET, dtype=torch.float32).eval()
        self.taken: dict[int, Tensor] = {}
        for number, layer in enumerate(self.model.model.layers, start=1):
            layer.register_forward_hook(lambda _m, _i, out, n=number: self.taken.__setitem__(n, out))

    def __call__(self, ids: Tensor) -> tuple[Tensor, Tensor]:
        with torch.no_grad():
            chosen = self.model(input_ids=ids, use_cache=False).logits.argmax(-1)
        return torch.cat([self.taken[n].float() for n in TARGET_LAYERS], dim=-1), chosen

    @property
    def embedding(self) -> Tensor:
        return self.model.model.embed_tokens.weight.detach()


def draft_loss(head: Head, target: Target, batch: Batch) -> tuple[Tensor, list[float]]:
    """Cross-entropy against the target's own choice at each drafted position, and the share drafted right."""
    ids, answer = batch.inputs, batch.weights
    states, chosen = target(ids)
    embedded = functional.embedding(ids, target.embedding)
    hidden = head.fc(states)
    loss, right = torch.zeros(()), []
    for step, weight in enumerate(STEP_WEIGHTS):
        # Position t pairs the hidden state of t with the token after it and drafts the one after that.
        length = ids.shape[1] - 1 - step
        logits, hidden = head(embedded[:, 1 + step :], hidden[:, :length], first_position=step)
        wanted, counts = chosen[:, 1 + step :], answer[:, 1 + step :].flatten()
        each = functional.cross_entropy(logits.flatten(0, 1).float(), wanted.flatten(), reduction="none")
        loss = loss + weight * (each * counts).sum() / counts.sum()
        asked = answer[:, 1 + step :] == 1.0
        right.append(float((logits.argmax(-1) == wanted)[asked].float().mean()))
    return loss, right


def save(head: Head, folder: Path) -> None:
    folder.mkdir(parents=True, exist_ok=True)
    write_weights({k: v.detach() for k, v in head.state_dict().items()}, folder / "model.safetensors")
    vocabulary = head.lm_head.weight.shape[0]
    config = {
        "architectures": ["LlamaForCausalLMEagle3"], "model_type": "llama", "torch_dtype": "bfloat16",
        **SHAPE, "num_hidden_layers": 1, "intermediate_size": INTERMEDIATE, "vocab_size": vocabulary,
        "draft_vocab_size": vocabulary, "rms_norm_eps": EPSILON, "rope_theta": THETA, "hidden_act": "silu",
        "max_position_embeddings": MAX_LENGTH, "tie_word_embeddings": False, "attention_bias": False,
        "eagle_aux_hidden_state_layer_ids": list(TARGET_LAYERS),
    }  # fmt: skip
    write_json(config, folder / "config.json")


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=1500)
    parser.add_argument("--minutes", type=float, default=240.0, help="end by then at the latest")
    parser.add_argument("--rate", type=float, default=2e-3)
    parser.add_argument("--seed", type=int, default=2)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--go-on", action="store_true", help="start from the head that is there")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    torch.manual_seed(given.seed)
    target = Target()
    head = Head(target.embedding)
    if given.go_on:
        head.load_state_dict(load_file(FOLDER / "model.safetensors"))
    opts = [*optimizers(head.midlayer, given.rate), torch.optim.AdamW(_outside(head), lr=given.rate)]
    source, began = ahead(batches(given.seed, models=("tiny-kimi",))), time.monotonic()
    for step in range(1, given.steps + 1):
        progress = min(1.0, max(step / given.steps, (time.monotonic() - began) / (60 * given.minutes)))
        set_rate(opts, given.rate * min(1.0, step / 40) * (0.02 + 0.49 * (1 + math.cos(math.pi * progress))))
        with torch.autocast("cpu", torch.bfloat16):
            loss, right = draft_loss(head, target, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(head.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        if step % 50 == 0 or progress >= 1.0:
            shares = " ".join(f"{share:.3f}" for share in right)
            print(f"step {step} loss {loss.item():.3f} right {shares} {time.monotonic() - began:.0f} s", flush=True)
            save(head, FOLDER)
        if progress >= 1.0:
            break


def _outside(head: Head) -> list[nn.Parameter]:
    return [p for n, p in head.named_parameters() if not n.startswith("midlayer")]


if __name__ == "__main__":
    main()
