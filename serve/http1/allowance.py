"""The connections and bytes that all clients of a listener share, and the memory that is left: 429 and 503 if there are
too many.

The longest body of one request (413) is checked in `serve/request/receive.py`.
"""

import logging
import mmap
import resource
from contextlib import suppress
from dataclasses import dataclass, field

from serve.errors import GatewayError, OutOfMemoryError, OverloadedError

log = logging.getLogger("ray.serve.specgate.http1")

_OWNERS_PART = 0.5  # of all bytes: the most that one owner's bodies hold, so that there is room for the others'
# Text is there a few times at once: as it came, decoded, and as it is sent.
_TIMES = 4
# An object of one member has eight bytes in a list and takes 192 in memory. What is dense is bounded in number, too.
_TIMES_DENSE = 24
_MOST_DENSE_BYTES = 256 * 1024 * 1024
_LITTLE_BYTES = 1024 * 1024
_SPARE_BYTES = 16 * 1024 * 1024  # for all who ask for little


def connections_within_files(most: int) -> int:
    """Returns for how many connections of clients this process has files, at most `most`; raises its limit if it may.

    Each may take two, the other one to an engine; a tenth of all files is for whatever else is opened.
    """
    allowed = resource.getrlimit(resource.RLIMIT_NOFILE)[1]
    with suppress(ValueError, OSError):  # shells let a process have 1024
        resource.setrlimit(resource.RLIMIT_NOFILE, (allowed, allowed))
    files = resource.getrlimit(resource.RLIMIT_NOFILE)[0]
    if files == resource.RLIM_INFINITY or (possible := files * 9 // 20) >= most:
        return most
    log.warning(
        "limits.max_connections is %d, but %d files that this process may open are enough for %d: raise the limit of "
        "open files (`ulimit -Hn`, systemd's LimitNOFILE)", most, files, possible,
    )  # fmt: skip
    return possible


def has_room(size_bytes: int) -> bool:
    """Returns whether the process has the memory to work on so many bytes of JSON.

    msgspec does not look whether it was given what it asked for: without memory, it ends the process.
    """
    if size_bytes <= _LITTLE_BYTES:
        return True
    needed = _TIMES * size_bytes + min(_TIMES_DENSE * size_bytes, _MOST_DENSE_BYTES) + _SPARE_BYTES
    try:
        mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # a promise; nothing is touched
    except (OSError, MemoryError, OverflowError):
        return False
    return True


@dataclass(slots=True)
class Allowance:
    """The connections and bytes that a listener grants to all of its clients together.

    Attributes:
        max_connections: Another one gets a 503 and is closed.
        max_buffered_bytes: Of requests' bodies; a body beyond that gets a 429, and so does one by which a single owner
            would hold more than half of that. One for which the process has no memory gets a 503.
        held_bytes: Of the bodies of all requests under way.
        unsent_bytes: Of answers that clients do not take.
        owned_bytes: Of those whose owner is known, by owner.
        draining: Requests under way end, and each new one gets a 503 and ends its connection.
    """

    max_connections: int = 8192
    max_buffered_bytes: int = 512 * 1024 * 1024
    retry_after_s: float = 2.0
    held_bytes: int = 0
    unsent_bytes: int = 0
    owned_bytes: dict[str, int] = field(default_factory=dict)
    draining: bool = False

    @property
    def has_much_unsent(self) -> bool:
        """True if answers that wait for their clients are as much as requests' bodies may be."""
        return self.unsent_bytes > self.max_buffered_bytes

    def take(self, size_bytes: int, owner: str = "") -> GatewayError | None:
        """Counts bytes, or returns the error for their sender.

        `owner` is empty while nobody knows it, and where all are equal.
        """
        if self.held_bytes + size_bytes > self.max_buffered_bytes:
            return self._error(f"This replica already holds {self.max_buffered_bytes} bytes of request bodies")
        if not has_room(self.held_bytes + size_bytes):
            message = "The gateway has no memory left for a body of this length; try again, or with a shorter one."
            return OutOfMemoryError(message, retry_after_s=self.retry_after_s)
        if owner and (error := self.assign(size_bytes, owner)):
            return error
        self.held_bytes += size_bytes
        return None

    def assign(self, size_bytes: int, owner: str) -> GatewayError | None:
        """Counts bytes as an owner's, which are counted in all already, or returns the error for it."""
        owned = self.owned_bytes.get(owner, 0) + size_bytes
        most = self.max_buffered_bytes * _OWNERS_PART
        if owned > most:
            return self._error(f"This replica already holds {most:.0f} bytes of the tenant {owner!r}'s request bodies")
        if owned:
            self.owned_bytes[owner] = owned
        return None

    def give_back(self, size_bytes: int, owner: str = "") -> None:
        """Frees bytes for other requests."""
        self.held_bytes -= size_bytes
        if owner and size_bytes:
            owned = self.owned_bytes.pop(owner) - size_bytes
            if owned:
                self.owned_bytes[owner] = owned

    def _error(self, what: str) -> GatewayError:
        return OverloadedError(f"{what}; try again shortly.", retry_after_s=self.retry_after_s)
