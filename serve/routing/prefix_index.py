"""An approximate index of the beginnings of prompts that replicas probably have in cache, fed by what was sent. Pure.

Engines are not asked. The index holds hashes of blocks of text, each standing for all the text up to its end, in an LRU
for each replica.
"""

from bisect import bisect_right
from collections import OrderedDict
from collections.abc import Collection, Iterator, Mapping, Sequence

BLOCK_BYTES = 1024  # about 256 tokens
_LONGEST_BLOCKS = 512  # of a prompt; what lies behind says nothing new about where it belongs
_KEPT_BLOCKS = 4096  # for each replica, about a million tokens
# What a replica's further request costs, in blocks: to compute 256 tokens of a prompt takes about as long as one more
# sequence delays all the steps of an answer.
_BLOCKS_PER_REQUEST = 1.0


class PrefixIndex:
    """The blocks that each replica was sent.

    Args:
        kept_blocks: For each replica; those that were not sent for longest are forgotten.
    """

    def __init__(self, kept_blocks: int = _KEPT_BLOCKS) -> None:
        self._kept_blocks = kept_blocks
        self._replicas: dict[str, OrderedDict[int, None]] = {}

    def choose(self, blocks: Sequence[int], requests: Mapping[str, int]) -> str | None:
        """Returns the replica where a prompt costs least: blocks to compute, and requests beyond the idlest replica's.

        Args:
            blocks: Of the prompt, from `blocks_of`.
            requests: Requests on each replica that has room.
        """
        if not requests:
            return None
        idlest = min(requests.values())

        def cost(replica: str) -> tuple[float, int]:
            missing = len(blocks) - self.known(replica, blocks)
            waiting = _BLOCKS_PER_REQUEST * (requests[replica] - idlest)
            return missing + waiting, len(self._replicas.get(replica, ()))

        return min(requests, key=cost)

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
