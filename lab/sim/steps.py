"""Splits text into tokens, roughly as a tokenizer would, and tokens into steps of 1..K+1 by an acceptance profile."""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from random import Random
from typing import Any

from lab.sim.segments import Segment

_ASTRAL_BYTES = 3
"""Tokens that an emoji takes in a byte-level vocabulary; its text appears with the last one."""
_ORDINARY = r" ?[A-Za-z]{1,7}|\d{1,3}|\s+|[^\sA-Za-z0-9]{1,2}"


@dataclass(frozen=True)
class ModelToken:
    """A token's visible text, which is empty inside a split character, and the segment that it belongs to."""

    text: str
    segment: Segment


def tokens_of(segments: Sequence[Segment], special: Sequence[str], *, handed_on: bool) -> list[ModelToken]:
    """Returns the tokens of segments; markers are one token each."""
    pattern = re.compile("|".join([*(re.escape(marker) for marker in special), r"[\U00010000-\U0010FFFF]", _ORDINARY]))
    tokens = []
    for segment in segments:
        for piece in pattern.findall(segment.handed_on if handed_on else segment.text):
            split = len(piece) == 1 and ord(piece) > 0xFFFF
            tokens += [ModelToken("", segment)] * (_ASTRAL_BYTES - 1 if split else 0)
            tokens.append(ModelToken(piece, segment))
    return tokens


@dataclass
class Speculation:
    """Statistics of one answer's drafts, named as in vLLM's per-request metrics."""

    drafts: int
    steps: int = 0
    accepted: int = 0
    histogram: list[int] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.histogram = [0] * (self.drafts + 1)

    def count(self, accepted: int) -> None:
        self.steps += 1
        self.accepted += accepted
        self.histogram[accepted] += 1

    def summary(self) -> dict[str, Any]:
        drafted = self.steps * self.drafts
        return {
            "mean_acceptance_length": 1 + self.accepted / self.steps if self.steps else None,
            "draft_acceptance_rate": self.accepted / drafted if drafted else None,
            "acceptance_histogram": self.histogram,
            "num_spec_steps": self.steps,
            "num_accepted_draft_tokens": self.accepted,
            "num_draft_tokens": drafted,
            "num_spec_tokens": self.drafts,
        }


def steps_of(
    tokens: Sequence[ModelToken], speculation: Speculation, acceptance: Sequence[float], rng: Random
) -> Iterator[Sequence[ModelToken]]:
    """Yield the tokens of each step: the drafts that the model accepts, and one that it samples.

    Args:
        tokens: All tokens of the answer.
        speculation: Counts the steps and the accepted drafts.
        acceptance: Chance of acceptance by draft position.
        rng: Decides which drafts are accepted.
    """
    place = 0
    while place < len(tokens):
        accepted = 0
        while accepted < speculation.drafts and rng.random() < acceptance[min(accepted, len(acceptance) - 1)]:
            accepted += 1
        speculation.count(accepted)
        yield tokens[place : place + accepted + 1]
        place += accepted + 1
