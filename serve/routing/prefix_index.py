"""An approximate index of the beginnings of prompts that replicas probably have in cache, fed by what was sent. Pure.

Engines are not asked. The index holds hashes of blocks of text, each standing for all the text up to its end, in an LRU
for each replica.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence

BLOCK_BYTES = 1024  # about 256 tokens
_LONGEST_BLOCKS = 2048  # of a prompt, half a million tokens: how much there is to compute counts as well
_KEPT_BLOCKS = 8192  # for each replica, about two million tokens


class PrefixIndex:
    """The blocks that each replica was sent.

    Args:
        kept_blocks: For each replica; those that were not sent for longest are forgotten.
    """

    def __init__(self, kept_blocks: int = _KEPT_BLOCKS) -> None:
        self._kept_blocks = kept_blocks
        self._replicas: dict[str, OrderedDict[int, None]] = {}

    def choose(self, blocks: Sequence[int], loads: Mapping[str, float]) -> str | None:
        """Returns the replica where a prompt costs least: what it must compute, and what it has to do anyway.

        Args:
            blocks: Of the prompt, from `blocks_of`.
            loads: What each replica that has room has to do, in blocks.
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
        while len(there) > self._kept_blocks:
            there.popitem(last=False)

    def keep(self, replicas: Collection[str]) -> None:
        """Forgets all other replicas."""
        self._replicas = {name: there for name, there in self._replicas.items() if name in replicas}


def blocks_of(texts: Sequence[bytes], salt: str = "") -> tuple[int, ...]:
    """Returns the blocks of a prompt.

    A block that is not full yet is left out: the conversation's next turn would fill it up.

    Args:
        texts: Its parts in order.
        salt: Of the cache; what was computed with another one is not there.
    """
    found = []
    chain = hash(salt)
    for block in _cut(texts):
        chain = hash((chain, block))  # of this process, as the index
        found.append(chain)
        if len(found) == _LONGEST_BLOCKS:
            break
    return tuple(found)


def _cut(texts: Sequence[bytes]) -> Iterator[bytes]:
    rest = b""
    for text in texts:
        rest += text
        whole = len(rest) - len(rest) % BLOCK_BYTES
        for start in range(0, whole, BLOCK_BYTES):
            yield rest[start : start + BLOCK_BYTES]
        rest = rest[whole:]
