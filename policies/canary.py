"""Splits conversations among pools that may all serve them: an operator's canaries, and identical pools. Pure.

Identical pools, alike in all but their name, rotate. A canary comes first for its share of the conversations and last
for all others. A conversation always gets the same order, so that its prefix stays cached where it began.
"""

from bisect import bisect_right
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from itertools import accumulate
from math import lcm
from typing import Generic, TypeVar
from zlib import crc32

from policies.decision import Reason

Item = TypeVar("Item")
Version = TypeVar("Version")
Ranked = list[tuple[tuple[int, int], Item]]  # ((rank, place in the configuration), item)

_MAX_ROTATIONS = 60
_POINTS = 2**32  # values of crc32
_LAST = 9  # a canary keeps its rank among canaries, behind every other rank


@dataclass(frozen=True, slots=True)
class Split(Generic[Version]):
    """One version for each group of conversations.

    Attributes:
        ends: Ends of the parts of [0, 1), except for the last, which ends at 1; conversations spread evenly over it.
        versions: For each part, the versions among which its conversations are divided equally.
    """

    ends: tuple[float, ...]
    versions: tuple[tuple[Version, ...], ...]

    def version(self, conversation: str) -> Version:
        """Returns the version for a conversation; an unidentified one gets the first version, never a canary's."""
        if not self.ends and len(self.versions[0]) == 1:
            return self.versions[0][0]
        number = crc32(conversation.encode("utf-8", "replace"))
        versions = self.versions[bisect_right(self.ends, number / _POINTS)]
        return versions[number % len(versions)]


def split(
    ranked: Ranked[Item],
    shares: Mapping[str, float],
    pool: Callable[[Item], str],
    make: Callable[[list[Item]], Version],
) -> Split[Version]:
    """Works out every version once.

    Args:
        ranked: Items that may serve, with their ranks; items of equal rank rotate.
        shares: Pool -> share of the conversations that it gets first. They add up to less than 1.
        pool: Returns the pool of an item.
        make: Makes a version of an order, best first.
    """
    present = {name: share for name, share in shares.items() if any(pool(item) == name for _, item in ranked)}
    starts = accumulate(present.values(), initial=1.0 - sum(present.values()))
    return Split(
        tuple(starts)[: len(present)],
        tuple(tuple(map(make, _rotations(_led(ranked, shares, pool, leader)))) for leader in (None, *present)),
    )


def reason(pool: str, share: float) -> Reason:
    """Returns the reason of a decision for which a canary comes first."""
    summary = (
        f"{pool} is a canary: first for {share:.3g} of the conversations, and for the rest if nothing else is left"
    )
    return Reason("canary", "inform", summary, "operator")


def _led(
    ranked: Ranked[Item], shares: Mapping[str, float], pool: Callable[[Item], str], leader: str | None
) -> Ranked[Item]:
    """Returns the items with one canary at the front of its rank, and the other canaries last."""

    def moved(rank: tuple[int, int], name: str) -> tuple[int, int]:
        if name == leader:
            return (rank[0], -1)
        return (_LAST + rank[0], rank[1]) if name in shares else rank

    return sorted(((moved(rank, pool(item)), item) for rank, item in ranked), key=lambda entry: entry[0])


def _rotations(ranked: Ranked[Item]) -> list[list[Item]]:
    groups = [[item for other, item in ranked if other == rank] for rank in dict.fromkeys(rank for rank, _ in ranked)]
    count = min(lcm(*map(len, groups)), _MAX_ROTATIONS) if groups else 1
    return [
        [item for group in groups for item in (*group[turn % len(group) :], *group[: turn % len(group)])]
        for turn in range(count)
    ]
