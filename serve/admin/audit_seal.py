"""The seal of an audit log: a key and the hash of the log's newest line, both outside of its folder.

Whoever can write in the folder alone can neither seal a line nor hide that the newest ones are gone.
"""

import fcntl
import hmac
import os
import re
import secrets
from hashlib import sha256
from pathlib import Path
from typing import IO, Self

from serve.config.regular_file import open_regular, read_regular, write_whole
from serve.errors import ConfigError

_KEY = re.compile(rb"[0-9a-f]{64}\s*")
_HEAD = re.compile(rb"([0-9a-f]{64})\n")
_MAX_BYTES = 1024
_SEALED = re.compile(rb'(\{.*),"seal":"([0-9a-f]{64})"\}', re.DOTALL)


class Seal:
    """The seal of one log.

    Args:
        path: File of the key, 64 hexadecimal digits; the newest line's hash is beside it, in `PATH.head`.

    Raises:
        OSError: A file can't be read.
        ConfigError: There is no key, or what is there is none.
    """

    def __init__(self, path: Path) -> None:
        self.path = path
        self._head_path = path.with_name(f"{path.name}.head")
        self._head_file: IO[bytes] | None = None
        try:
            data = read_regular(path, _MAX_BYTES)
        except FileNotFoundError:
            raise ConfigError(f"there is no key of the audit log in {path}") from None
        if not _KEY.fullmatch(data):
            raise ConfigError(f"{path} holds no key of an audit log, which is 64 hexadecimal digits")
        self._key = bytes.fromhex(data.decode())

    @classmethod
    def make(cls, path: Path) -> Self:
        """Returns a seal with a new key, which is on the disk.

        Raises:
            OSError: It can't be written, or there is one.
        """
        path.parent.mkdir(parents=True, exist_ok=True, mode=0o700)
        draft = path.with_name(f"{path.name}.draft")
        draft.unlink(missing_ok=True)
        with open_regular(draft, os.O_WRONLY | os.O_CREAT | os.O_EXCL) as file:
            write_whole(file, secrets.token_hex(32).encode() + b"\n")
            os.fsync(file.fileno())
        os.link(draft, path)  # whole, and never in another's place
        draft.unlink()
        return cls(path)

    @property
    def head(self) -> str:
        """The hash of the newest line; empty if there was none yet.

        Raises:
            OSError: It can't be read.
        """
        try:
            match = _HEAD.match(read_regular(self._head_path, _MAX_BYTES))
        except FileNotFoundError:
            return ""
        return match[1].decode() if match is not None else ""

    def begin(self) -> None:
        """Takes the head for this process.

        Raises:
            OSError: It can't be written; `BlockingIOError` if another process has it.
        """
        self._head_file = open_regular(self._head_path, os.O_WRONLY | os.O_CREAT)
        try:
            fcntl.flock(self._head_file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except OSError:
            self.close()
            raise

    def move(self, last: str) -> None:
        """Notes the newest line's hash, in the place of the one before, so that a full disk has room for it.

        Raises:
            OSError: It can't be written.
        """
        assert self._head_file is not None
        os.pwrite(self._head_file.fileno(), f"{last}\n".encode(), 0)
        os.fdatasync(self._head_file.fileno())

    def close(self) -> None:
        """Lets another process have the head."""
        if self._head_file is not None:
            self._head_file.close()
            self._head_file = None

    def sealed(self, content: bytes) -> bytes:
        """Returns a line with its seal as the last member."""
        return b'%b,"seal":"%b"}' % (content[:-1], self._of(content))

    def is_on(self, line: bytes) -> bool:
        """Returns True if a line has the seal of this key."""
        match = _SEALED.fullmatch(line)
        return match is not None and hmac.compare_digest(match[2], self._of(match[1] + b"}"))

    def _of(self, content: bytes) -> bytes:
        return hmac.new(self._key, content, sha256).hexdigest().encode()


def has_seal(line: bytes) -> bool:
    """Returns True if a line has the seal of some key."""
    return _SEALED.fullmatch(line) is not None
