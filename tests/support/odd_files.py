"""Things that may stand where a file is expected."""

import os
from pathlib import Path

ODD_KINDS = ("folder", "fifo", "device")


def put_odd(kind: str, path: Path) -> None:
    """Puts something that is no regular file at a path."""
    if kind == "folder":
        path.mkdir()
    elif kind == "fifo":
        os.mkfifo(path)
    else:
        path.symlink_to("/dev/zero")
