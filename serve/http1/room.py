"""Memory that the process is about to need."""

import mmap

# An object of one member has eight bytes in a list and takes 192 in memory; nothing that is read takes more.
_BYTES_FOR_EACH = 24
_LITTLE_BYTES = 1024 * 1024
_SPARE_BYTES = 16 * 1024 * 1024  # for all who ask for little


def has_room(size_bytes: int) -> bool:
    """Returns whether the process has the memory to work on so many bytes of JSON.

    msgspec does not look whether it was given what it asked for: without memory, it ends the process.
    """
    if size_bytes <= _LITTLE_BYTES:
        return True
    needed = _BYTES_FOR_EACH * size_bytes + _SPARE_BYTES
    try:
        mmap.mmap(-1, needed, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS).close()  # a promise; nothing is touched
    except (OSError, MemoryError, OverflowError):
        return False
    return True
