"""The audit log: JSON lines, each with the hash of the one before, in files that are never written again.

Whoever changes or takes out a line breaks the chain from there on. A chain alone can't tell that its newest lines are
gone, or that somebody wrote all of it once more. With a key outside of the folder (`audit_seal.py`) it can; without
one, `specgate audit verify` prints the last line's hash, to be kept elsewhere and given to the next run.
"""

import fcntl
import json
import logging
import os
import re
from collections import deque
from collections.abc import Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from typing import IO, Any

from serve.access.token import without_secrets
from serve.admin.audit_seal import Seal, has_seal
from serve.config.regular_file import open_regular, write_whole
from serve.errors import ConfigError, StorageError, encode_json

log = logging.getLogger("ray.serve.specgate.audit")

GENESIS = "0" * 64  # the hash before the first line
_MAX_FILE_BYTES = 16 * 2**20
_KEPT = 1000
_PROBE_BYTES = 4096
_MAX_TEXT = 1024
_NAME = re.compile(r"audit-([0-9]{6,})\.jsonl")


@dataclass(frozen=True, slots=True)
class AuditEntry:
    """Something that an operator changed, saw or was refused. It never holds a secret.

    Attributes:
        key: Id of the key; empty if there was none that is known.
        action: `quarantine.lift`, `refused` and so on.
        before: State of the object before the change, if it was one.
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
        last: Hash of the last one; `GENESIS` if there is none.
        faults: `FILE:LINE: what is wrong`, in order.
        is_sealed: Lines have a seal, which only their key can check.
    """

    lines: int
    last: str
    faults: tuple[str, ...]
    is_sealed: bool = False


class AuditLog:
    """Writes the chain. A folder that can't be used now is tried again with each line. Without a folder, the newest
    lines are in memory only; without a file of a key, which is made if it is missing, lines have no seal. A file that
    is longer than `max_file_bytes` is followed by another one.

    Raises:
        ConfigError: Somebody else writes there.
    """

    def __init__(
        self, folder: Path | None, max_file_bytes: int = _MAX_FILE_BYTES, key_file: Path | None = None
    ) -> None:
        self._folder = folder
        self._max_file_bytes = max_file_bytes
        self._key_file = key_file
        self._recent: deque[dict[str, Any]] = deque(maxlen=_KEPT)
        self._last = GENESIS
        self._number = 0
        self._file: IO[bytes] | None = None
        self._path = Path()  # of the file
        self._lock: IO[bytes] | None = None
        self._seal: Seal | None = None
        if folder is not None:
            try:
                self._continue(folder)
                self._begin_file(folder)
            except BlockingIOError as error:
                raise ConfigError(f"another admin API writes its audit log in {folder}") from error
            except (OSError, ConfigError) as error:
                log.error("%s: until then, nothing can be changed here", _unwritable(folder, error))

    def write(self, entry: AuditEntry) -> None:
        """Appends a line. It is on the disk when this returns, whole; otherwise nothing of it is.

        Raises:
            StorageError: It could not be written, so what it records must not happen.
        """
        try:
            if self._folder is not None and self._lock is None:
                self._continue(self._folder)
            line = self._line(entry)
            last = sha256(line).hexdigest()
            if self._folder is not None:
                self._append(self._folder, line + b"\n", last)
        except (OSError, ConfigError) as error:
            reason = _unwritable(self._folder, error)
            log.error("%s", reason)
            message = f"Nothing was changed, since {reason}. Make room there or mend it, and ask again."
            raise StorageError(message) from error
        self._last = last
        self._recent.append(json.loads(line))
        log.info("audit %s", line.decode())

    def recent(self, limit: int) -> list[dict[str, Any]]:
        """Returns the newest lines of this process's life, newest first."""
        return list(self._recent)[::-1][:limit]

    @property
    def failing(self) -> bool:
        """Changes would be refused: the log can't be written now. It is tried, so not too often."""
        if self._folder is None:
            return False
        probe = self._folder / "probe"
        try:
            if self._lock is None:
                self._continue(self._folder)
            with open_regular(probe, os.O_WRONLY | os.O_CREAT) as file:
                write_whole(file, bytes(_PROBE_BYTES))
                os.fsync(file.fileno())
            probe.unlink()
        except (OSError, ConfigError):
            with suppress(OSError):
                probe.unlink()
            return True
        return False

    @property
    def last(self) -> str:
        return self._last

    def close(self) -> None:
        """Lets another process write there."""
        for each in (self._file, self._lock, self._seal):
            if each is not None:
                each.close()
        self._file = self._lock = self._seal = None

    def _line(self, entry: AuditEntry) -> bytes:
        now = datetime.now(UTC).isoformat()
        text = without_secrets(encode_json({"time": now, **_short(asdict(entry)), "previous": self._last}).decode())
        return text.encode() if self._seal is None else self._seal.sealed(text.encode())

    def _append(self, folder: Path, data: bytes, last: str) -> None:
        """Appends a line and moves the seal's head; what fails in between is taken back."""
        if self._file is None or self._file.tell() >= self._max_file_bytes or not self._is_as_left():
            self._begin_file(folder)
        assert self._file is not None
        file, start = self._file, self._file.tell()
        try:
            write_whole(file, data)
            os.fsync(file.fileno())
            if self._seal is not None:
                self._seal.move(last)
        except OSError:
            try:
                file.truncate(start)
                file.seek(start)
            except OSError:  # a part of the line stays; the next one begins a file
                file.close()
                self._file = None
            raise

    def _is_as_left(self) -> bool:
        """Returns False if somebody has removed, renamed, cut or lengthened the file: a line there would be lost."""
        assert self._file is not None
        try:
            there = os.stat(self._path, follow_symlinks=False)
        except OSError:
            return False
        return os.path.samestat(there, os.fstat(self._file.fileno())) and there.st_size == self._file.tell()

    def _continue(self, folder: Path) -> None:
        """Takes the folder for this process, and goes on after the last line there.

        Raises:
            OSError: It can't be used; `BlockingIOError` if somebody else writes there.
            ConfigError: The key that seals its lines is gone, or is none.
        """
        lock = None
        try:
            folder.mkdir(parents=True, exist_ok=True, mode=0o700)
            lock = open_regular(folder / "audit.lock", os.O_WRONLY | os.O_CREAT)
            fcntl.flock(lock, fcntl.LOCK_EX | fcntl.LOCK_NB)
            last, is_sealed = GENESIS, False
            hashes = set()
            files = _files(folder)
            for place, line in _lines(files):
                if line is None:
                    log.error("%s in the folder of the audit log is not a file", place)
                    continue
                last, is_sealed = sha256(line).hexdigest(), is_sealed or has_seal(line)
                hashes.add(last)
            self._seal = self._sealed(folder, is_sealed)
            if self._seal is not None and (head := self._seal.head) and head not in hashes:
                log.error("the audit log in %s does not have its newest line any more: lines were taken out", folder)
                last = head  # so that every check finds the gap, for ever
            self._last = last
            if self._seal is not None and not self._seal.head:
                self._seal.move(last)
            self._number = max((_number(path) for path in files), default=0)
            self._lock = lock
        except BaseException:
            if self._seal is not None:
                self._seal.close()
                self._seal = None
            if lock is not None:
                lock.close()
            raise

    def _sealed(self, folder: Path, is_sealed: bool) -> Seal | None:
        if self._key_file is None:
            if is_sealed:
                raise ConfigError(f"the audit log in {folder} is sealed: set `admin.audit_key_file` to its key's file")
            return None
        if not self._key_file.exists():
            if is_sealed:
                raise ConfigError(
                    f"the key that seals the audit log in {folder} is gone from {self._key_file}: put it back, or "
                    "begin another log with another `admin.audit_dir`"
                )
            Seal.make(self._key_file).close()
        seal = Seal(self._key_file)
        seal.begin()
        return seal

    def _begin_file(self, folder: Path) -> None:
        """Begins a new file, as at each start: a line that a crash has cut stays as it is."""
        if self._file is not None:
            self._file.close()
            self._file = None
        while self._file is None:
            self._number += 1
            with suppress(FileExistsError):
                self._path = folder / f"audit-{self._number:06d}.jsonl"
                self._file = open_regular(self._path, os.O_WRONLY | os.O_CREAT | os.O_EXCL)


def verify(path: Path, expected: str = "", *, key_file: Path | None = None, follows: str = "") -> ChainCheck:
    """Reads a chain.

    Args:
        path: One file, or the folder of all. The first file may have had others before it, so any hash may precede it
            where there is no key.
        expected: Hash of a line that must be there, such as the last one of an earlier check.
        key_file: The key that seals the lines. With it, the newest line that was ever written must be in the folder.
        follows: Hash of the last line that was put elsewhere, which the first one must follow.

    Raises:
        ConfigError: There is nothing to read, or it can't be read.
    """
    files = _files(path) if path.is_dir() else [path]
    if not files or (not path.is_dir() and not path.is_file()):
        raise ConfigError(
            f"there is no audit log in {path}; a gateway writes one if `admin.audit_dir` names a folder, else it keeps "
            "the newest lines in memory: `specgate audit list`"
        )
    try:
        return _verified(path, files, expected, Seal(key_file) if key_file is not None else None, follows)
    except OSError as error:
        raise ConfigError(f"the audit log can't be read: {error}") from error


def _verified(path: Path, files: Sequence[Path], expected: str, seal: Seal | None, follows: str) -> ChainCheck:
    is_first = _number(files[0]) == 1 or (seal is not None and path.is_dir())
    before = follows or (GENESIS if is_first else None)
    last, lines, is_sealed = GENESIS, 0, False
    faults: list[str] = []
    awaited = {expected: "", **({seal.head: "the newest line that was written"} if seal and path.is_dir() else {})}
    for place, line in _lines(files):
        if line is None:
            faults.append(f"{place}: not a file")
            continue
        if fault := _fault(_previous(line), last if lines else None, before):
            faults.append(f"{place}: {fault}")
        if seal is not None and (is_sealed or has_seal(line)) and not seal.is_on(line):
            faults.append(f"{place}: not sealed with this key: somebody else wrote it")
        is_sealed = is_sealed or has_seal(line)
        last, lines = sha256(line).hexdigest(), lines + 1
        awaited.pop(last, None)
    for missing, what in awaited.items():
        if missing:
            found = f"no line has the hash {missing}" + (f", {what}" if what else "")
            faults.append(f"{path}: {found}: lines were taken out, at the end perhaps")
        elif what and lines:
            faults.append(f"{path}: the hash of {what} is not beside the key, so lines may be missing at the end")
    return ChainCheck(lines, last, tuple(faults), is_sealed)


def _fault(previous: str | None, last: str | None, before: str | None) -> str:
    """Returns what is wrong with a line; empty if nothing is.

    Args:
        previous: The hash that it has of the line before it; None if it can't be read.
        last: The hash of the line before it; None for the first one that is read.
        before: The hash that the first one must have; None for any.
    """
    if previous is None:
        return "not a whole line of an audit log"
    if last is None:
        return "not the first line of the log" if before is not None and previous != before else ""
    return "" if previous == last else "does not follow the line before it: one was changed, added or taken out"


def _previous(line: bytes) -> str | None:
    try:
        value = json.loads(line)["previous"]
    except (ValueError, KeyError, TypeError, RecursionError):
        return None
    return value if isinstance(value, str) else None


def _files(folder: Path) -> list[Path]:
    """Returns what has the name of a file of the log, in order."""
    return sorted((path for path in folder.iterdir() if _NAME.fullmatch(path.name)), key=_number)


def _number(file: Path) -> int:
    match = _NAME.fullmatch(file.name)
    return int(match[1]) if match is not None else 0


def _lines(files: Sequence[Path]) -> Iterator[tuple[str, bytes | None]]:
    """Yields `FILE:LINE` and each line without its end; for what is no file, its name and None."""
    for path in files:
        if not path.is_file():
            yield path.name, None
            continue
        with path.open("rb") as lines:
            for number, line in enumerate(lines, 1):
                yield f"{path.name}:{number}", line.removesuffix(b"\n")


def _unwritable(folder: Path | None, error: OSError | ConfigError) -> str:
    if isinstance(error, ConfigError):
        return str(error)
    if isinstance(error, BlockingIOError):
        return f"another admin API writes its audit log in {folder}"
    where = f": {error.filename}" if error.filename else ""
    return f"the audit log can't be written in {folder} ({error.strerror or error}{where})"


def _short(entry: dict[str, Any]) -> dict[str, Any]:
    return {name: value[:_MAX_TEXT] if isinstance(value, str) else value for name, value in entry.items()}
