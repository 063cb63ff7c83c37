"""SQLite files that are damaged: they are put aside under a name that says so, and whoever needs one goes on."""

import logging
import os
import sqlite3
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

_DAMAGE = frozenset({sqlite3.SQLITE_CORRUPT, sqlite3.SQLITE_NOTADB})
_PRIMARY = 0xFF  # of an extended code


def is_damaged(error: sqlite3.Error) -> bool:
    """Returns True if an error says that the file is no database, or not a whole one."""
    return getattr(error, "sqlite_errorcode", 0) & _PRIMARY in _DAMAGE


def is_odd(path: Path) -> bool:
    """Returns True if something is there that can't be a database: a folder, a pipe or a device."""
    return path.exists() and not path.is_file()


def check(database: sqlite3.Connection) -> None:
    """Reads a whole file once.

    Raises:
        sqlite3.DatabaseError: It is damaged.
    """
    (found,) = database.execute("pragma quick_check(1)").fetchone()
    if found != "ok":
        raise damage(found)


def damage(what: str) -> sqlite3.DatabaseError:
    """Returns the error of a file that SQLite itself would read."""
    error = sqlite3.DatabaseError(what)
    error.sqlite_errorcode = sqlite3.SQLITE_CORRUPT
    return error


@contextmanager
def transaction(database: sqlite3.Connection, begin: str = "begin") -> Iterator[None]:
    """Has all that is done within happen, or nothing of it; the connection commits by itself otherwise."""
    database.execute(begin)
    try:
        yield
        database.execute("commit")
    except BaseException:
        if database.in_transaction:  # SQLite itself takes back what a full disk has no room for
            database.execute("rollback")
        raise


def put_aside(path: Path, why: object, log: logging.Logger) -> None:
    """Renames a file and what belongs to it.

    Raises:
        OSError: It can't be renamed.
    """
    aside = path.with_name(f"{path.name}.damaged-{time.strftime('%Y%m%dT%H%M%SZ', time.gmtime())}")
    for end in ("-wal", "-shm", ""):
        if os.path.lexists(f"{path}{end}"):
            os.replace(f"{path}{end}", f"{aside}{end}")
    log.error("%s can't be used (%s); it is kept as %s", path, why, aside)
