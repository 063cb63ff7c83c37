"""The audit log: JSON lines, each with the hash of the one before, in files that are never written again.

Whoever changes or takes out a line breaks the chain from there on. A chain alone can't tell that its newest lines are
gone, or that somebody wrote all of it once more. With a seal it can: a key and the hash of the newest line, both
outside of the folder, without which nobody can seal a line or hide that the newest ones are gone. Without one,
`specgate audit verify` prints the last line's hash, to be kept elsewhere and given to the next run.
"""

import asyncio
import fcntl
import hmac
import json
import logging
import os
import re
import secrets
from collections import Counter, deque
from collections.abc import Callable, Iterator, Sequence
from contextlib import suppress
from dataclasses import asdict, dataclass
from datetime import UTC, datetime
from hashlib import sha256
from pathlib import Path
from time import monotonic
from typing import IO, Any, Self

from serve.access.key_text import without_secrets
from serve.config.regular_file import open_regular, read_regular, write_whole
from serve.errors import ConfigError, StorageError, encode_json
from serve.limits.bucket import Bucket
from serve.limits.ledger_messages import LimitTerms

log = logging.getLogger("ray.serve.specgate.audit")

GENESIS = "0" * 64  # the hash before the first line
_MAX_FILE_BYTES = 16 * 2**20
_KEPT = 1000
_PROBE_BYTES = 4096
_MAX_TEXT = 1024
_NAME = re.compile(r"audit-([0-9]{6,})\.jsonl")
_KEY = re.compile(rb"[0-9a-f]{64}\s*")
_HEAD = re.compile(rb"([0-9a-f]{64})\n")
_MAX_SEAL_BYTES = 1024
_SEALED = re.compile(rb'(\{.*),"seal":"([0-9a-f]{64})"\}', re.DOTALL)
# Of refused calls, lines a second and at once.
_OF_ONE = LimitTerms(0.2, 20.0)
_OF_ALL = LimitTerms(2.0, 200.0)
_MOST_CALLERS = 1024
_PERIOD_S = 10.0


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
            data = read_regular(path, _MAX_SEAL_BYTES)
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
            match = _HEAD.match(read_regular(self._head_path, _MAX_SEAL_BYTES))
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

    def recent(self, count: int) -> list[dict[str, Any]]:
        """Returns the newest lines of this process's life, newest first."""
        return list(self._recent)[::-1][:count]

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


class Refusals:
    """Writes refused calls down.

    A call without a key costs its caller nothing, and a line costs a sync of the disk and its space for ever.
    """

    def __init__(self, log: AuditLog, clock: Callable[[], float] = monotonic) -> None:
        self._log = log
        self._clock = clock
        self._all = Bucket(_OF_ALL, clock())
        self._callers: dict[tuple[str, str], Bucket] = {}
        self._more: Counter[tuple[str, str, str]] = Counter()

    def write(self, entry: AuditEntry) -> None:
        """Writes a refused call, or counts it. A line that can't be written changes nothing: the call is refused."""
        now_s = self._clock()
        caller = (entry.key, "" if entry.key else entry.source)
        lines = self._callers.pop(caller, None) or Bucket(_OF_ONE, now_s)
        self._callers[caller] = lines  # at the end: who has been silent for the longest is the first
        if len(self._callers) > _MOST_CALLERS:
            del self._callers[next(iter(self._callers))]
        if lines.refill(now_s) >= 1 and self._all.refill(now_s) >= 1:
            lines.level -= 1
            self._all.level -= 1
            with suppress(StorageError):
                self._log.write(entry)
                return
        self._more[entry.key, entry.tenant, entry.source if len(self._more) < _MOST_CALLERS else ""] += 1

    def tell(self) -> None:
        """Writes how many calls have no line of their own."""
        if not self._more:
            return
        (key, tenant, source), most = self._more.most_common(1)[0]
        total, callers = self._more.total(), len(self._more)
        what = f"{total} more calls of {callers} callers, {most} of them of this one"
        with suppress(StorageError):
            self._log.write(AuditEntry(key, tenant, source, "refused", what, reason="too_many_to_list"))
            self._more.clear()

    async def run(self) -> None:
        """Calls `tell` every few seconds, forever."""
        while True:
            await asyncio.sleep(_PERIOD_S)
            self.tell()
