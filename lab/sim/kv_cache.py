"""A simulated engine's KV memory: what its sequences hold, and the prefixes that it keeps for later ones. Pure."""

from __future__ import annotations

from collections import OrderedDict
from collections.abc import Sequence
from typing import NamedTuple


class Part(NamedTuple):
    """A part of a text that sequences can share: it is found again only behind the same parts.

    Attributes:
        key: Identifies the part and everything before it, such as a hash; a part that grows keeps its key.
        tokens: Its length.
    """

    key: object
    tokens: int


class KvCache:
    """The tokens in memory, by part. Parts that no sequence holds are kept until their place is needed.

    Args:
        tokens: Its size.
        promised: What sequences may hold together once their answers are whole; its size if not given.

    Attributes:
        used: Tokens in memory, the kept ones included.
        held: Tokens of sequences.
        queried: Tokens of all prompts so far.
        hits: Those of them that were in memory.
        preempted: Sequences that had to make room before they had ended.
    """

    def __init__(self, tokens: int, promised: float | None = None) -> None:
        self.tokens = tokens
        self._promised = promised or tokens
        self.used = 0
        self.held = 0
        self.queried = 0
        self.hits = 0
        self.preempted = 0
        self._parts: OrderedDict[object, list[int]] = OrderedDict()  # key -> [tokens, sequences that hold it]

    def cached(self, prompt: Sequence[Part]) -> int:
        """Returns how many tokens of a prompt are in memory, from its beginning without a gap."""
        found = 0
        for part in prompt:
            entry = self._parts.get(part.key)
            tokens = min(part.tokens, entry[0]) if entry else 0
            found += tokens
            if tokens < part.tokens:
                break
        return found

    def fits(self, parts: Sequence[Part]) -> bool:
        """Returns True if a sequence with these parts, its answer included, fits beside all that are held."""
        return self.held + sum(self._growth(part) for part in parts) <= self._promised

    def hold(self, parts: Sequence[Part], prompt_tokens: int, cached: int) -> None:
        """Takes a sequence in, and forgets the prefixes that have not been needed for longest.

        Args:
            parts: Of its prompt and its answer.
            prompt_tokens: For the hit rate.
            cached: From `cached`.
        """
        self.queried += prompt_tokens
        self.hits += cached
        for part in parts:
            growth = self._growth(part)
            entry = self._parts.setdefault(part.key, [0, 0])
            self.used += max(0, part.tokens - entry[0])
            self.held += growth
            entry[0] = max(entry[0], part.tokens)
            entry[1] += 1
            self._parts.move_to_end(part.key)
        self._evict()

    def release(self, parts: Sequence[Part]) -> None:
        """Lets go of a sequence; its parts are kept as long as there is room, the earlier ones for longer."""
        for part in reversed(parts):
            entry = self._parts[part.key]
            entry[1] -= 1
            if not entry[1]:
                self.held -= entry[0]
            self._parts.move_to_end(part.key)
        self._evict()

    def _growth(self, part: Part) -> int:
        """Returns by how much the tokens that are held grow with a part."""
        tokens, holders = self._parts.get(part.key, (0, 0))
        return max(0, part.tokens - tokens) if holders else max(part.tokens, tokens)

    def _evict(self) -> None:
        evicted = []
        excess = self.used - self.tokens
        for key, (tokens, holders) in self._parts.items():
            if excess <= 0:
                break
            if not holders:
                evicted.append(key)
                excess -= tokens
        for key in evicted:
            self.used -= self._parts.pop(key)[0]
