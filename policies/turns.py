"""Whose turn it is: how conversations are divided among pools that may all serve them. Pure.

Twins, pools alike in all but their name, take turns. A canary comes first for its share of the conversations and last
for all others. A conversation always gets the same order, so that its prefix stays cached where it began.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from typing import Generic, TypeVar
from zlib import crc32

Item = TypeVar("Item")
Made = TypeVar("Made")
Ranked = list[tuple[tuple[int, int], Item]]  # (rank, place in the configuration) and what stands there

_MOST_TURNS = 60
_POINTS = 2**32
_LAST = 9  # a rank behind every other


@dataclass(frozen=True, slots=True)
class Turns(Generic[Made]):
    """One version for each group of conversations.

    Attributes:
        ends: Where each part of [0, 1) ends but the last, which ends at 1; conversations are spread over it evenly.
        versions: For each part, the versions among which its conversations are divided equally.
    """

    ends: tuple[float, ...]
    versions: tuple[tuple[Made, ...], ...]

    def of(self, conversation: str) -> Made:
        """The version for a conversation; one that can't be told from others gets the first, never a canary's."""
        if not self.ends and len(self.versions[0]) == 1:
            return self.versions[0][0]
        number = crc32(conversation.encode("utf-8", "replace"))
        versions = self.versions[bisect_right(self.ends, number / _POINTS)]
        return versions[number % len(versions)]


def divide(
    ranked: Ranked[Item], shares: Mapping[str, float], pool: Callable[[Item], str], make: Callable[[list[Item]], Made]
) -> Turns[Made]:
    """Work out every version once.

    Args:
        ranked: What may serve, with its rank; equal ones take turns.
        shares: Pool -> share of the conversations that it gets first. They add up to less than 1.
        pool: The pool of an item.
        make: What becomes of an order, best first.
    """
    present = {name: share for name, share in shares.items() if any(pool(item) == name for _, item in ranked)}
    firsts = accumulate(present.values(), initial=1.0 - sum(present.values()))
    return Turns(
        tuple(firsts)[: len(present)],
        tuple(tuple(map(make, _orders(_led(ranked, shares, pool, leader)))) for leader in (None, *present)),
    )


def _led(
    ranked: Ranked[Item], shares: Mapping[str, float], pool: Callable[[Item], str], leader: str | None
) -> Ranked[Item]:
    """With the canary whose turn it is in front of its rank, and the others behind everything."""

    def moved(rank: tuple[int, int], name: str) -> tuple[int, int]:
        if name == leader:
            return (rank[0], -1)
        return (_LAST, rank[1]) if name in shares else rank

    return sorted(((moved(rank, pool(item)), item) for rank, item in ranked), key=lambda each: each[0])


def _orders(ranked: Ranked[Item]) -> list[list[Item]]:
    groups = [[item for other, item in ranked if other == rank] for rank in dict.fromkeys(rank for rank, _ in ranked)]
    turns = min(lcm(*map(len, groups)), _MOST_TURNS) if groups else 1
    return [
        [item for group in groups for item in (*group[turn % len(group) :], *group[: turn % len(group)])]
        for turn in range(turns)
    ]
