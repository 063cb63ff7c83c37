"""Placement of prompts in a pool that routes by prefix: the index, and this gateway's requests on each replica."""

from __future__ import annotations

from array import array
from bisect import bisect_right
from collections import Counter, OrderedDict, deque
from collections.abc import Callable, Collection, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractContextManager
from itertools import accumulate
from typing import Any
from zlib import crc32

from serve.routing.pool import Endpoint, Hold

# What a replica's further request costs, in blocks: to compute 256 tokens of a prompt takes about as long as one more
# sequence delays all the steps of an answer.
_BLOCKS_PER_REQUEST = 0.5
# What a block costs that a replica has yet to compute for others. One that it must compute for this prompt costs twice
# as much: the prompt waits for both, but only the latter keeps those waiting that come after it.
_PER_WAITING_BLOCK = 0.5
# The same of what other gateways have told up to a second ago: some of it is computed since, and all who hear of an
# idle replica at once would go there.
_PER_WAITING_BLOCK_OF_OTHERS = 0.25
BLOCK_BYTES = 1024
BLOCK_TOKENS = BLOCK_BYTES // 4  # about
_LONGEST_BLOCKS = 2048  # of a prompt, half a million tokens: how much there is to compute counts as well
_KEPT_TOKENS = 2_000_000  # by a replica that does not tell
_MOST_BLOCKS = 65536  # that are remembered of a replica, some 10 MB
_MOST_UNTOLD = 1024  # prompts that other gateways have yet to be told of
NOTHING: Mapping[str, float] = {}  # to be done, by any replica
_MOST_TOLD = 32768  # blocks that one is told of at a time; to take them in takes some 3 ms


class PrefixIndex:
    """The blocks that each replica was sent, as many of the last as it keeps by `kept_blocks`."""

    def __init__(self, kept_blocks: Callable[[str], int]) -> None:
        self._kept_blocks = kept_blocks
        self._replicas: dict[str, OrderedDict[int, None]] = {}

    def choose(self, blocks: Sequence[int], loads: Mapping[str, float]) -> str | None:
        """Returns the replica where a prompt costs least: what it must compute, and what it has to do anyway.

        `loads` is what each replica that has room has to do, in blocks.
        """

        def cost(replica: str) -> tuple[float, int]:
            missing = len(blocks) - self.known(replica, blocks)
            return missing + loads[replica], len(self._replicas.get(replica, ()))

        return min(loads, key=cost, default=None)

    def known(self, replica: str, blocks: Sequence[int]) -> int:
        """Returns how many blocks a replica has, from the beginning without a gap.

        A replica that has a block has all before it, which were sent with it and are forgotten later. So a few look-ups
        find where it ends.
        """
        there = self._replicas.get(replica, OrderedDict())
        return bisect_right(blocks, False, key=lambda block: block not in there)

    def sent(self, replica: str, blocks: Sequence[int]) -> None:
        """Tells that a prompt was sent to a replica."""
        there = self._replicas.setdefault(replica, OrderedDict())
        for block in reversed(blocks):  # the beginning is what others share: it is forgotten last
            there[block] = None
            there.move_to_end(block)
        kept = self._kept_blocks(replica)
        while len(there) > kept:
            there.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Forgets all other replicas."""
        if not self._replicas.keys() <= set(replicas):
            self._replicas = {name: there for name, there in self._replicas.items() if name in replicas}

    def forget(self, replica: str) -> None:
        """Forgets what a replica was sent."""
        self._replicas.pop(replica, None)


def blocks_of(texts: Sequence[bytes], salt: str = "") -> tuple[int, ...]:
    """Returns the blocks of a prompt.

    A block that is not full yet is left out: the conversation's next turn would fill it up. What was computed with
    another salt of the cache is not there.
    """
    found = []
    chain = crc32(salt.encode())
    for block in _cut(texts):
        chain = crc32(block, chain)  # the same in every gateway
        found.append(chain)
        if len(found) == _LONGEST_BLOCKS:
            break
    return tuple(found)


def newest(sent: Sequence[tuple[str, bytes]]) -> tuple[tuple[str, bytes], ...]:
    """Returns the last of some prompts as `PoolReport.sent` has them, as many as another gateway is told at a time."""
    sizes = accumulate(len(blocks) // 4 for _, blocks in reversed(sent))
    return tuple(sent[len(sent) - sum(size <= _MOST_TOLD for size in sizes) :])


def _cut(texts: Sequence[bytes]) -> Iterator[bytes]:
    rest = b""
    for text in texts:
        rest += text
        whole = len(rest) - len(rest) % BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            yield rest[start : start + BLOCK_BYTES]
        rest = rest[whole:]


class PrefixPlacement:
    """Chooses replicas by what they were sent, and by what they still have to do.

    Args:
        slots: Those of each running replica.
        kept_tokens: How many tokens of prompts a replica keeps; None if it does not tell.
        known: All replicas that may still have what they were sent, by default those that run.
    """

    def __init__(
        self,
        slots: Callable[[], Mapping[str, int]],
        kept_tokens: Callable[[str], int | None] = lambda _: None,
        known: Callable[[], Collection[str]] | None = None,
    ) -> None:
        def kept_blocks(url: str) -> int:
            return min((kept_tokens(url) or _KEPT_TOKENS) // BLOCK_TOKENS + 1, _MOST_BLOCKS)

        self._slots = slots
        self._known = known
        self._index = PrefixIndex(kept_blocks)
        self._requests: Counter[str] = Counter()
        self._waiting_blocks: Counter[str] = Counter()
        self._others: Mapping[str, float] = {}
        self._untold = deque[tuple[str, Sequence[int]]](maxlen=_MOST_UNTOLD)

    def choose(self, blocks: Sequence[int], avoid: Collection[str] = ()) -> str:
        """Returns the URL of the best replica for a prompt; empty if none is known to have room."""
        slots = self._slots()
        self._index.keep(slots if self._known is None else self._known())
        if len(slots) < 2:
            return ""
        loads = {
            url: _BLOCKS_PER_REQUEST * self._requests[url]
            + _PER_WAITING_BLOCK * self._waiting_blocks[url]
            + self._others.get(url, 0.0)
            for url, most in slots.items()
            if self._requests[url] < most and url not in avoid
        }
        return self._index.choose(blocks, loads) or ""

    def restarted(self, url: str) -> None:
        """Takes note that a replica has nothing of what it was sent."""
        self._index.forget(url)

    def report(self) -> tuple[tuple[str, bytes], ...]:
        """Returns the prompts that were sent since the last report, as `PoolReport.sent` has them."""
        sent = newest([(url, array("I", blocks).tobytes()) for url, blocks in self._untold])
        self._untold.clear()
        return sent

    def doing(self) -> dict[str, float]:
        """Returns what replicas have to do for this gateway, as `PoolReport.doing` has it."""
        return {
            url: _BLOCKS_PER_REQUEST * requests + _PER_WAITING_BLOCK_OF_OTHERS * self._waiting_blocks[url]
            for url, requests in self._requests.items()
        }

    def merge(self, sent: Iterable[tuple[str, bytes]], doing: Mapping[str, float] = NOTHING) -> None:
        """Takes what other gateways have reported."""
        self._others = doing
        for url, blocks in sent:
            self._index.sent(url, array("I", blocks))

    def at(self, url: str, blocks: Sequence[int]) -> Placed:
        """Returns a context that counts a request on the replica that serves it."""
        self._untold.append((url, blocks))
        return Placed(url, blocks, self._index, self._requests, self._waiting_blocks)


class Placed(AbstractContextManager[None]):
    """A request on the replica that serves it. Requests, and blocks that are yet to be computed, are counted by URL."""

    def __init__(
        self,
        url: str,
        blocks: Sequence[int],
        index: PrefixIndex,
        requests: Counter[str],
        waiting_blocks: Counter[str],
    ) -> None:
        self._url = url
        self._blocks = blocks
        self._index = index
        self._requests = requests
        self._waiting_blocks = waiting_blocks
        self._missing = 0

    def __enter__(self) -> None:
        self._missing = len(self._blocks) - self._index.known(self._url, self._blocks)
        self._index.sent(self._url, self._blocks)
        _count(self._requests, self._url, 1)
        _count(self._waiting_blocks, self._url, self._missing)

    def begun(self) -> None:
        """Tells that the prompt is computed."""
        _count(self._waiting_blocks, self._url, -self._missing)
        self._missing = 0

    def __exit__(self, *_: object) -> None:
        self.begun()
        _count(self._requests, self._url, -1)


def _count(counts: Counter[str], url: str, change: int) -> None:
    """Changes a count; one of zero is dropped, so that replicas that are gone leave nothing."""
    counts[url] += change
    if not counts[url]:
        del counts[url]


class PlacedHold(Hold):
    """A hold whose request is counted where it has its slot."""

    def __init__(self, hold: Hold, placement: PrefixPlacement, blocks: Sequence[int]) -> None:
        self._hold = hold
        self._placement = placement
        self._blocks = blocks
        self._placed: Placed

    async def __aenter__(self) -> Endpoint:
        endpoint = await self._hold.__aenter__()
        self.turn = self._hold.turn
        self._placed = self._placement.at(endpoint.url, self._blocks)
        self._placed.__enter__()
        return endpoint

    def begun(self) -> None:
        self._placed.begun()

    async def __aexit__(self, *error: Any) -> None:
        self._placed.__exit__(*error)
        await self._hold.__aexit__(*error)
