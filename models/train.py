"""Trains the network that both stand-ins are cut from: `python -m models.train`."""

import argparse
import math
import time
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from queue import Queue
from random import Random
from threading import Thread

import torch
from torch import Tensor
from torch.nn import functional
from transformers import Qwen3ForCausalLM

from models import network
from models.batches import Batch, batches, collate, example
from models.network import give_copying_heads

ROOT = Path(__file__).parent
WARM_UP_STEPS = 60
COPYING_STEPS = 300
HELD_OUT_SEED = 987_654_321


@dataclass(frozen=True, slots=True)
class Plan:
    """How long and how fast to train. The run ends at `steps` or after `minutes`, the rate falling to 0 until then."""

    steps: int
    minutes: float
    rate: float
    seed: int
    draft: bool
    go_on: bool

    @property
    def shape(self) -> dict[str, int]:
        return network.DRAFT_SHAPE if self.draft else network.SHAPE

    @property
    def folders(self) -> dict[str, Path]:
        """Where each model's weights are written, and read from to go on."""
        if self.draft:
            return {"tiny-qwen": ROOT / "tiny-qwen-draft"}
        return {model: ROOT / model for model in network.MODELS}


def weighted_loss(net: Qwen3ForCausalLM, batch: Batch) -> Tensor:
    """Mean cross-entropy with each token's weight; the answer counts, the prompt hardly does."""
    logits = net(input_ids=batch.inputs[:, :-1], use_cache=False).logits
    losses = functional.cross_entropy(logits.flatten(0, 1).float(), batch.inputs[:, 1:].flatten(), reduction="none")
    weights = batch.weights[:, 1:].flatten()
    return (losses * weights).sum() / weights.sum()


def exact_share(net: Qwen3ForCausalLM, count: int = 192) -> float:
    """Share of held-out answers that greedy decoding gives to the letter (every token the most likely one)."""
    r = Random(HELD_OUT_SEED)
    right = 0
    net.eval()
    with torch.no_grad():
        for _ in range(count // 32):
            batch = collate([example(r) for _ in range(32)])
            guess = net(input_ids=batch.inputs[:, :-1], use_cache=False).logits.argmax(-1)
            asked = batch.weights[:, 1:] == 1.0
            right += int((((guess == batch.inputs[:, 1:]) | ~asked).all(1)).sum())
    net.train()
    return right / count


def optimizers(net: torch.nn.Module, rate: float) -> list[torch.optim.Optimizer]:
    """Muon for the matrices inside the layers, AdamW for the rest: half the steps of AdamW alone."""
    matrices = [p for n, p in net.named_parameters() if p.ndim == 2 and ("layers" in n or "proj" in n)]
    rest = [p for n, p in net.named_parameters() if not (p.ndim == 2 and ("layers" in n or "proj" in n))]
    return [
        torch.optim.Muon(matrices, lr=rate, weight_decay=0.01, adjust_lr_fn="match_rms_adamw"),
        torch.optim.AdamW(rest, lr=rate, betas=(0.9, 0.95), weight_decay=0.0),
    ]


def set_rate(opts: list[torch.optim.Optimizer], rate: float) -> None:
    for opt in opts:
        for group in opt.param_groups:
            group["lr"] = rate


def ahead(source: Iterator[Batch]) -> Iterator[Batch]:
    """Make batches in a thread of their own while the network computes."""
    ready: Queue[Batch] = Queue(maxsize=24)

    def fill() -> None:
        for batch in source:
            ready.put(batch)

    Thread(target=fill, daemon=True).start()
    while True:
        yield ready.get()


def train(plan: Plan) -> None:
    """Train one network, reporting the share of exact answers and writing the weights as it goes."""
    torch.manual_seed(plan.seed)
    net = network.build(plan.shape)
    if plan.go_on:
        network.restore(net, plan.folders)
    elif plan.draft:
        give_copying_heads(net)
    fresh = not plan.go_on and not plan.draft
    net.train()
    opts = optimizers(net, plan.rate)
    source = ahead(batches(plan.seed, copying=COPYING_STEPS if fresh else 0))
    began = time.monotonic()
    for step in range(1, plan.steps + 1):
        progress = min(1.0, max(step / plan.steps, (time.monotonic() - began) / (60 * plan.minutes)))
        set_rate(
            opts, plan.rate * min(1.0, step / WARM_UP_STEPS) * (0.02 + 0.98 * 0.5 * (1 + math.cos(math.pi * progress)))
        )
        with torch.autocast("cpu", torch.bfloat16):
            loss = weighted_loss(net, next(source))
        loss.backward()
        torch.nn.utils.clip_grad_norm_(net.parameters(), 1.0)
        for opt in opts:
            opt.step()
            opt.zero_grad()
        if step % 50 == 0:
            print(f"step {step} loss {loss.item():.4f} {time.monotonic() - began:.0f} s", flush=True)
        if step % 250 == 0 or progress >= 1.0:
            print(f"step {step} exact {exact_share(net):.3f}", flush=True)
            save(net, plan)
        if progress >= 1.0:
            break


def save(net: Qwen3ForCausalLM, plan: Plan) -> None:
    """Write the network as the model folders that are cut from it."""
    for model, folder in plan.folders.items():
        network.export(net, plan.shape, model, folder)


def main() -> None:
    """Read the command line and train."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--steps", type=int, default=3000)
    parser.add_argument("--minutes", type=float, default=240.0, help="end by then at the latest")
    parser.add_argument("--rate", type=float, default=3e-3)
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--threads", type=int, default=4)
    parser.add_argument("--draft", action="store_true", help="train the small draft model of tiny-qwen instead")
    parser.add_argument("--go-on", action="store_true", help="start from the weights that are there")
    given = parser.parse_args()
    torch.set_num_threads(given.threads)
    train(Plan(given.steps, given.minutes, given.rate, given.seed, given.draft, given.go_on))


if __name__ == "__main__":
    main()
