"""Placement of prompts in a pool that routes by prefix: the index, and this gateway's requests on each replica."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from typing import Any

from serve.routing.endpoint import Endpoint
from serve.routing.hold import Hold
from serve.routing.prefix_index import PrefixIndex


class PrefixPlacement:
    """Chooses replicas by what they were sent, and counts what they have.

    Args:
        slots: Returns the slots of each running replica, by URL.
    """

    def __init__(self, slots: Callable[[], Mapping[str, int]]) -> None:
        self._slots = slots
        self._index = PrefixIndex()
        self._requests: Counter[str] = Counter()

    def choose(self, blocks: Sequence[int]) -> str:
        """Returns the URL of the best replica for a prompt; empty if none is known to have room."""
        slots = self._slots()
        if len(slots) < 2:
            return ""
        self._index.keep(slots)
        room = {url: self._requests[url] for url, most in slots.items() if self._requests[url] < most}
        return self._index.choose(blocks, room) or ""

    @contextmanager
    def at(self, url: str, blocks: Sequence[int]) -> Iterator[None]:
        """Counts a request on the replica that serves it, as long as the context lasts."""
        self._index.sent(url, blocks)
        self._requests[url] += 1
        try:
            yield
        finally:
            self._requests[url] -= 1
            if not self._requests[url]:
                del self._requests[url]


class PlacedHold(Hold):
    """A hold whose request is counted where it has its slot.

    Args:
        hold: On the slot.
        placement: Counts it.
        blocks: Of its prompt.
    """

    def __init__(self, hold: Hold, placement: PrefixPlacement, blocks: Sequence[int]) -> None:
        self._hold = hold
        self._placement = placement
        self._blocks = blocks
        self._counted = ExitStack()

    async def __aenter__(self) -> Endpoint:
        endpoint = await self._hold.__aenter__()
        self.turn = self._hold.turn
        self._counted.enter_context(self._placement.at(endpoint.url, self._blocks))
        return endpoint

    async def __aexit__(self, *error: Any) -> None:
        self._counted.close()
        await self._hold.__aexit__(*error)
