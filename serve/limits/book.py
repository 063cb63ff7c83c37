"""Usage by the hour and spending by the month, in SQLite: a row for each sum, never one for a request."""

import logging
import sqlite3
from collections.abc import Iterable, Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

from msgspec.structs import astuple

from serve.errors import ConfigError, InvalidRequestError, SharedStateError
from serve.limits.quota import month_of
from serve.limits.usage import USAGE_COLUMNS, UsageKey, UsageSums
from serve.shared.database_file import is_damaged, is_odd, put_aside, transaction

log = logging.getLogger("ray.serve.specgate.limits")

DIMENSIONS = UsageKey._fields
FILE = "usage.sqlite"
_HOUR = "%Y-%m-%dT%H:00Z"
_MOST_REPORTERS = 4096

_SCHEMA = f"""
create table if not exists usage (
  hour text not null, {", ".join(f"{name} not null" for name in DIMENSIONS)},
  {", ".join(f"{name} integer not null" for name in USAGE_COLUMNS)},
  primary key (hour, {", ".join(DIMENSIONS)})
) without rowid;
create table if not exists spending (
  month text not null, scope text not null, cost real not null, primary key (month, scope)
) without rowid;
create table if not exists reports (replica text primary key, number integer not null);
create table if not exists book (identity text not null);
insert into book select lower(hex(randomblob(8))) where not exists (select * from book);
"""
_ADD_USAGE = f"""
insert into usage values ({", ".join("?" * (1 + len(DIMENSIONS) + len(USAGE_COLUMNS)))})
on conflict do update set {", ".join(f"{name} = {name} + excluded.{name}" for name in USAGE_COLUMNS)}
"""
# Fails for a table of others with that name.
_ADD_USAGE_NOTHING = (
    f"insert into usage select {', '.join(['hour', *DIMENSIONS, *USAGE_COLUMNS])} from usage where false"
)
_ADD_SPENDING = "insert into spending values (?, ?, ?) on conflict do update set cost = cost + excluded.cost"
_NUMBER = "insert into reports values (?, ?) on conflict do update set number = excluded.number"


class UsageBook:
    """The sums. One process writes: the ledger's. Without a folder, they are kept in memory.

    Attributes:
        identity: Of the sums, for as long as there are these.
    """

    def __init__(self, folder: str | None = None) -> None:
        self._path = Path(folder) / FILE if folder else None
        self._months: dict[tuple[str, str], float] = {}
        try:
            if self._path is not None:
                self._path.parent.mkdir(mode=0o700, parents=True, exist_ok=True)
                if is_odd(self._path):
                    put_aside(self._path, "it is not a file", log)
            try:
                self._open()
            except sqlite3.Error as error:
                if self._path is None or not (is_damaged(error) or _is_of_others(error)):
                    raise
                put_aside(self._path, error, log)
                self._open()
        except (OSError, sqlite3.Error) as error:
            raise ConfigError(
                f"{self._path} can't be used for the usage of tenants ({error}): make room on its disk or mend it. "
                "Until then replicas keep what they count, and limits hold by their shares."
            ) from error

    def _open(self) -> None:
        if self._path is not None:
            self._path.touch(mode=0o600)
        # An actor may be made in one thread and run in another, but never in two at once.
        place = ":memory:" if self._path is None else str(self._path)
        self._db = sqlite3.connect(place, isolation_level=None, check_same_thread=False)
        try:
            self._db.executescript("pragma journal_mode = wal; pragma synchronous = normal;" + _SCHEMA)
            self._db.execute(_ADD_USAGE_NOTHING)
            self.identity: str = self._db.execute("select identity from book").fetchone()[0]
            self._db.execute("select cost from spending where month = '' and scope = ''")
            self._db.execute("select number from reports where replica = ''")
        except sqlite3.Error:
            self._db.close()
            raise

    @contextmanager
    def _damage_put_aside(self) -> Iterator[None]:
        """Puts the file aside if it turns out to be damaged; what was to be done is not done, and may be tried again.

        Raises:
            SharedStateError: It was.
        """
        try:
            yield
        except sqlite3.Error as error:
            if self._path is None or not is_damaged(error):
                raise
            self._db.close()
            put_aside(self._path, error, log)
            self._months.clear()
            self._open()
            raise SharedStateError("The usage was damaged and begins with nothing.", retry_after_s=1.0) from error

    def add(
        self, replica: str, number: int, usage: Mapping[UsageKey, UsageSums], spent: Mapping[str, float], at: datetime
    ) -> None:
        """Adds what a report says, unless it did before, perhaps to a ledger that has died. The time is in UTC."""
        if not usage and not spent:
            return
        hour, month = at.strftime(_HOUR), month_of(at)
        with self._damage_put_aside():
            known = self._db.execute("select number from reports where replica = ?", (replica,)).fetchone()
            if known is not None and number <= known[0]:
                return
            with transaction(self._db):
                self._db.executemany(_ADD_USAGE, [(hour, *key, *astuple(sums)) for key, sums in usage.items()])
                self._db.executemany(_ADD_SPENDING, [(month, *each) for each in spent.items()])
                self._db.execute(_NUMBER, (replica, number))
                self._db.execute(
                    "delete from reports where rowid <= (select max(rowid) from reports) - ?", (_MOST_REPORTERS,)
                )
        for scope, cost in spent.items():
            if (month, scope) in self._months:
                self._months[month, scope] += cost

    def spending(self, scopes: Iterable[str], month: str) -> dict[str, float]:
        """Returns what scopes have spent in a month; see `month_of`."""
        with self._damage_put_aside():
            return {scope: self._spent(month, scope) for scope in scopes}

    def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns sums, a row for each set of values of some `dimensions`. The hour `until` does not count any more."""
        with self._damage_put_aside():
            return summed(self._db, by, since, until)

    def close(self) -> None:
        self._db.close()

    def _spent(self, month: str, scope: str) -> float:
        if (month, scope) not in self._months:
            row = self._db.execute("select cost from spending where month = ? and scope = ?", (month, scope)).fetchone()
            self._months[month, scope] = row[0] if row else 0.0
        return self._months[month, scope]


def _is_of_others(error: sqlite3.Error) -> bool:
    """Returns True if a statement does not fit the tables that are there."""
    return error.sqlite_errorcode == sqlite3.SQLITE_ERROR


# What sums may be made by, and how it is read off a row.
_EXPRESSIONS = {**{name: name for name in DIMENSIONS}, "hour": "hour", "day": "substr(hour, 1, 10)"}


def dimensions(by: str) -> list[str]:
    """Returns the dimensions that a text names, separated by commas.

    Raises:
        InvalidRequestError: There is no such dimension.
    """
    names = [name.strip() for name in by.split(",") if name.strip()]
    if unknown := [name for name in names if name not in _EXPRESSIONS]:
        raise InvalidRequestError(f"Usage has no {', '.join(unknown)}; it has {', '.join(_EXPRESSIONS)}.", param="by")
    return names


def instant(text: str) -> datetime | None:
    """Returns a point in time, in UTC where the text does not say otherwise; None for no text.

    Raises:
        InvalidRequestError: It is no date in ISO format.
    """
    if not text:
        return None
    try:
        found = datetime.fromisoformat(text)
    except ValueError as error:
        raise InvalidRequestError(f"{text!r} is no date such as 2026-11-01 or 2026-11-01T08:00.") from error
    try:
        return found.astimezone(UTC) if found.tzinfo else found.replace(tzinfo=UTC)
    except OverflowError as error:
        raise InvalidRequestError(f"{text!r} is in no year from 1 to 9999 in UTC.") from error


def summed(
    db: sqlite3.Connection, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
) -> list[dict[str, Any]]:
    """Returns sums of a database; see `UsageBook.usage`."""
    groups = ", ".join(f"{_EXPRESSIONS[name]} as {name}" for name in by)
    sums = ", ".join(f"sum({name}) as {name}" for name in USAGE_COLUMNS)
    bounds = [("hour >= ?", since), ("hour < ?", until)]
    where = " and ".join(text for text, at in bounds if at is not None) or "true"
    values = [at.astimezone(UTC).strftime(_HOUR) for _, at in bounds if at is not None]
    order = f" group by {', '.join(by)} order by {', '.join(by)}" if by else ""
    cursor = db.execute(f"select {', '.join(filter(None, (groups, sums)))} from usage where {where}{order}", values)
    names = [column[0] for column in cursor.description]
    rows = [dict(zip(names, row, strict=True)) for row in cursor if row[-1] is not None]
    return [{**row, "speculative": bool(row["speculative"])} if "speculative" in row else row for row in rows]


def read(folder: str, by: Sequence[str], since: datetime | None, until: datetime | None) -> list[dict[str, Any]]:
    """Returns the sums in a folder's file, while its ledger runs or not.

    Raises:
        ConfigError: There is no such file, or the file can't be read.
    """
    path = Path(folder) / FILE
    if not path.exists():
        raise ConfigError(f"{path} does not exist: is this the `access.state_dir` of a gateway that has served?")
    try:
        with closing(sqlite3.connect(f"{path.absolute().as_uri()}?mode=ro", uri=True)) as db:
            return summed(db, by, since, until)
    except sqlite3.Error as error:
        raise ConfigError(f"{path} can't be read as a gateway's usage: {error}") from error
