"""Disks that are full, as one process sees them."""

import resource
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path


@contextmanager
def full_disk(*, after: Path, room_bytes: int = 0) -> Iterator[None]:
    """Lets no file of this process grow beyond the size that one has now, and a little more.

    Args:
        after: The file.
        room_bytes: What may be added to it.
    """
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (after.stat().st_size + room_bytes, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
