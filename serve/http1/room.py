"""Memory that the process is about to need."""

import mmap

# Text is there a few times at once: as it came, decoded, and as it is sent.
_TIMES = 4
# An object of one member has eight bytes in a list and takes 192 in memory. What is dense is bounded in number, too.
_TIMES_DENSE = 24
_MOST_DENSE_BYTES = 256 * 1024 * 1024
_LITTLE_BYTES = 1024 * 1024
_SPARE_BYTES = 16 * 1024 * 1024  # for all who ask for little


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
