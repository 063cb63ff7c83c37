"""The audit log: JSON lines, each with the hash of the one before, in files that are never written again.

Whoever changes or takes out a line breaks the chain from there on. A chain can't tell that its newest lines are gone:
`specgate audit verify` prints the last line's hash, to be kept elsewhere and given to the next run.
"""

import fcntl
import json
import logging
import os
from collections import deque
from collections.abc import Iterator, Sequence
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from serve.access.token import without_secrets
from serve.errors import ConfigError, encode_json

log = logging.getLogger("ray.serve.specgate.audit")

GENESIS = "0" * 64  # the hash before the first line
_MAX_FILE_BYTES = 16 * 2**20
_KEPT = 1000
_MAX_TEXT = 1024
_PATTERN = "audit-*.jsonl"


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that an operator changed, saw or was refused. It never holds a secret.

    Attributes:
        key: Id of the key; empty if there was none that is known.
        tenant: The key's.
        source: The client's address.
        action: `quarantine.lift`, `refused` and so on.
        object: What it was done to.
        before: State of the object before the change, if it was one.
        after: State after it.
        request_id: Of the request.
        reason: The operator's, or the error's code.
    """

    key: str
    tenant: str
    source: str
    action: str
    object: str
    before: Any = None
    after: Any = None
    request_id: str = ""
    reason: str = ""


@dataclass(frozen=True, slots=True)
class ChainCheck:
    """The result of reading a chain.

    Attributes:
        lines: Lines that were read.
        last: Hash of the last one; `GENESIS` if there is none.
        faults: `FILE:LINE: what is wrong`, in order.
    """

    lines: int
    last: str
    faults: tuple[str, ...]


class AuditLog:
    """Writes the chain.

    Args:
        folder: For its files; None keeps the newest lines in memory only.
        max_file_bytes: A longer file is followed by another one.

    Raises:
        ConfigError: The folder can't be used, or somebody else writes there.
    """

    def __init__(self, folder: Path | None, max_file_bytes: int = _MAX_FILE_BYTES) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._last = GENESIS
        self._number = 0
        self._file: IO[bytes] | None = None
        self._lock: IO[bytes] | None = None
        if folder is not None:
            self._continue(folder)

    def write(self, entry: AuditEntry) -> None:
        """Appends a line. It is on the disk when this returns.

        Raises:
            OSError: It could not be written.
        """
        now = datetime.now(UTC).isoformat()
        content = encode_json({"time": now, **_short(asdict(entry)), "previous": self._last})
        line = without_secrets(content.decode()).encode()
        if self._file is not None:
            if self._file.tell() >= self._max_file_bytes:
                self._begin_file()
            self._file.write(line + b"\n")
            self._file.flush()
            os.fsync(self._file.fileno())
        self._last = sha256(line).hexdigest()
        self._recent.append(json.loads(line))
        log.info("audit %s", line.decode())

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """Returns the newest lines of this process's life, newest first."""
        return list(self._recent)[::-1][:limit]

    @property
    def last(self) -> str:
        """The newest line's hash."""
        return self._last

    def close(self) -> None:
        """Lets another process write there."""
        for file in (self._file, self._lock):
            if file is not None:
                file.close()

    def _continue(self, folder: Path) -> None:
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            self._lock = (folder / "audit.lock").open("wb")
            fcntl.flock(self._lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError as error:
            self.close()
            raise ConfigError(f"another admin API writes its audit log in {folder}") from error
        except OSError as error:
            raise ConfigError(f"the audit log can't be written in {folder}: {error}") from error
        files = sorted(folder.glob(_PATTERN))
        for path in files[-1:]:
            self._number = int(path.stem.rpartition("-")[2])
        for _, line in _lines(files):
            self._last = sha256(line).hexdigest()
        self._begin_file()

    def _begin_file(self) -> None:
        """Begins a new file, as at each start: a line that a crash has cut stays as it is."""
        assert self._folder is not None
        if self._file is not None:
            self._file.close()
        self._number += 1
        path = self._folder / f"audit-{self._number:06d}.jsonl"
        self._file = open(path, "xb", opener=lambda name, flags: os.open(name, flags, 0o600))  # noqa: SIM115


def verify(path: Path, expected: str = "") -> ChainCheck:
    """Reads a chain.

    Args:
        path: One file, or the folder of all. The first file may have had others before it, so any hash may precede it.
        expected: Hash of a line that must be there, such as the last one of an earlier check.

    Raises:
        ConfigError: There is nothing to read, or it can't be read.
    """
    files = sorted(path.glob(_PATTERN)) if path.is_dir() else [path]
    if not files or not all(file.is_file() for file in files):
        raise ConfigError(f"there is no audit log in {path}")
    last, lines = GENESIS, 0
    faults: list[str] = []
    awaited = expected
    for place, line in _lines(files):
        if fault := _fault(_previous(line), last if lines else None, is_first=files[0].stem.endswith("-000001")):
            faults.append(f"{place}: {fault}")
        last, lines = sha256(line).hexdigest(), lines + 1
        awaited = "" if last == awaited else awaited
    if awaited:
        faults.append(f"{path}: no line has the hash {awaited}: lines were taken out, at the end perhaps")
    return ChainCheck(lines, last, tuple(faults))


def _fault(previous: str | None, last: str | None, *, is_first: bool) -> str:
    """Returns what is wrong with a line; empty if nothing is.

    Args:
        previous: The hash that it has of the line before it; None if it can't be read.
        last: The hash of the line before it; None for the first one that is read.
        is_first: True if the first file of the log is the first one that is read.
    """
    if previous is None:
        return "not a whole line of an audit log"
    if last is None:
        return "not the first line of the log" if is_first and previous != GENESIS else ""
    return "" if previous == last else "does not follow the line before it: one was changed, added or taken out"


def _previous(line: bytes) -> str | None:
    try:
        value = json.loads(line)["previous"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes]]:
    """Yields `FILE:LINE` and each line without its end."""
    for file in files:
        try:
            with file.open("rb") as lines:
                for number, line in enumerate(lines, 1):
                    yield f"{file.name}:{number}", line.removesuffix(b"\n")
        except OSError as error:
            raise ConfigError(f"the audit log can't be read: {error}") from error


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in entry.items()}
