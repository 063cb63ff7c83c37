"""Files as configuration and state mean them: regular ones. A pipe in their place would hold its reader for ever."""

import errno
import os
import stat
from pathlib import Path
from typing import IO

_MODE = 0o600  # of new ones


def open_regular(path: Path, flags: int = os.O_RDONLY) -> IO[bytes]:
    """Returns a file, opened without a buffer. Flags are those of `os.open`.

    Raises:
        OSError: It can't be opened, or is a folder, a pipe or a device.
    """
    file = os.open(path, flags | os.O_NONBLOCK | os.O_CLOEXEC, _MODE)
    if not stat.S_ISREG(os.fstat(file).st_mode):
        os.close(file)
        raise OSError(errno.EINVAL, "it is not a regular file", str(path))
    return os.fdopen(file, "rb" if flags & os.O_ACCMODE == os.O_RDONLY else "wb", buffering=0)


def write_whole(file: IO[bytes], data: bytes) -> None:
    """Writes all of some bytes to a file without a buffer.

    Raises:
        OSError: A part of it, or nothing, is written.
    """
    while data:
        data = data[file.write(data) :]


def read_regular(path: Path, most_bytes: int) -> bytes:
    """Returns the content of a file.

    Raises:
        OSError: It can't be read, is larger, or is a folder, a pipe or a device.
    """
    with open_regular(path) as file:
        parts = bytearray()
        while len(parts) <= most_bytes and (part := file.read(most_bytes + 1 - len(parts))):
            parts += part
    if len(parts) > most_bytes:
        raise OSError(errno.EFBIG, f"it has more than {most_bytes} bytes", str(path))
    return bytes(parts)
