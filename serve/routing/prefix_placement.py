"""Where prompts go in a pool that routes by prefix: the index, and this gateway's requests on each replica."""

from collections import Counter
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

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
