"""Endless training batches: dialogues of both formats, packed by length, with a weight for every token."""

from collections.abc import Iterator
from dataclasses import dataclass
from random import Random

import torch
from torch import Tensor

from models.dialogues import dialogue
from models.network import MODELS, row_shift
from models.render import token_ids
from models.vocabulary import BASE_SIZE

TOKENS_PER_BATCH = 6144
POOL = 384
PROMPT_WEIGHT = 0.02
LONGEST = 512
# These are right long before the calls are: half of them make room for dialogues that still teach something.
EASY_KINDS = frozenset({"plain", "json", "result"})


@dataclass(frozen=True, slots=True)
class Example:
    """Rows of the shared embedding, and how many of them are prompt."""

    rows: list[int]
    prompt_length: int


@dataclass(frozen=True, slots=True)
class Batch:
    """Inputs padded at the end, and the weight of predicting each token."""

    inputs: Tensor
    weights: Tensor


def to_rows(model: str, ids: list[int]) -> list[int]:
    """A model's token ids as rows of the shared embedding."""
    shift = row_shift(model)
    return [i + shift if i >= BASE_SIZE else i for i in ids]


def example(r: Random, models: tuple[str, ...] = MODELS) -> Example:
    model, made = r.choice(models), dialogue(r)
    while made.kind in EASY_KINDS and r.random() < 0.5:
        made = dialogue(r)
    prompt, answer = token_ids(model, made)
    return Example(to_rows(model, prompt + answer), len(prompt))


def repetition(r: Random) -> Example:
    """Random tokens, then the same ones again: the quickest way to learn copying before anything else."""
    wanted = [r.randrange(BASE_SIZE) for _ in range(r.randint(4, 40))]
    return Example(wanted * 3, len(wanted))


def collate(examples: list[Example]) -> Batch:
    length = max(len(e.rows) for e in examples)
    inputs = torch.zeros(len(examples), length, dtype=torch.long)
    weights = torch.zeros(len(examples), length)
    for i, e in enumerate(examples):
        inputs[i, : len(e.rows)] = torch.tensor(e.rows)
        weights[i, : len(e.rows)] = 1.0
        weights[i, : e.prompt_length] = PROMPT_WEIGHT
    return Batch(inputs, weights)


def batches(seed: int, copying: int = 0, longest: int = LONGEST, models: tuple[str, ...] = MODELS) -> Iterator[Batch]:
    """Batches for ever.

    Args:
        seed: The same seed gives the same batches.
        copying: How many batches at the start are half repetitions, short sequences only.
        longest: Longer dialogues are left out.
        models: Whose formats they are in.
    """
    r = Random(seed)
    made = 0
    while True:
        warm = made < copying
        limit = 160 if warm else longest
        pool = [repetition(r) if warm and r.random() < 0.5 else example(r, models) for _ in range(POOL)]
        pool = sorted((e for e in pool if len(e.rows) <= limit), key=lambda e: len(e.rows))
        groups: list[list[Example]] = [[]]
        for e in pool:
            if groups[-1] and (len(groups[-1]) + 1) * len(e.rows) > TOKENS_PER_BATCH:
                groups.append([])
            groups[-1].append(e)
        r.shuffle(groups)
        yield from map(collate, groups)
        made += len(groups)
