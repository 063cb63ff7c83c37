"""Watches a folder of advisories or verdicts that an operator mounted, so that a new one counts without a restart."""

import asyncio
from collections.abc import Awaitable, Callable
from pathlib import Path

from serve.config.signature import SIGNED

PERIOD_S = 10.0

Stamp = frozenset[tuple[str, int, int, int]]


class AdvisoryFeed:
    """Calls back when the folder holds other files than those last read.

    A change counts once it has stood still for a period: a folder that is being copied is not read half-way.

    Args:
        folder: Returns the folder to watch, or None if there is none.
        reload: Reads and adopts what the folder holds now, or refuses it as a whole and says so.
    """

    def __init__(self, folder: Callable[[], Path | None], reload: Callable[[], Awaitable[None]]) -> None:
        self._folder = folder
        self._reload = reload

    async def run(self) -> None:
        """Watches for ever."""
        read: tuple[Path | None, Stamp] | None = None
        before = read
        while True:
            folder = self._folder()
            now = folder, await asyncio.to_thread(stamp_of, folder) if folder else frozenset()
            if read is None or folder != read[0]:  # start, or a reconfiguration, which has read it itself
                read = now
            elif now != read and now == before:
                read = now
                await self._reload()
            before = now
            await asyncio.sleep(PERIOD_S)


def stamp_of(folder: Path) -> Stamp:
    """Returns what tells one state of a folder from another, without reading its files."""
    stamps = set()
    for path in (*folder.glob("*.yaml"), *folder.glob(f"*{SIGNED}")):
        try:
            stat = path.stat()  # of the file itself: a mounted ConfigMap changes by swapping a link
        except FileNotFoundError:  # it went while we looked
            continue
        except OSError:  # a link to itself; whoever reads the folder says so
            stamps.add((path.name, 0, 0, 0))
            continue
        stamps.add((path.name, stat.st_mtime_ns, stat.st_size, stat.st_ino))
    return frozenset(stamps)
