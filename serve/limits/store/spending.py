"""Spending of months over all clusters: this one's book, and what the store knows of the others'."""

from collections.abc import Callable, Iterable, Mapping
from datetime import UTC, datetime

from serve.limits.book import UsageBook
from serve.limits.messages import Spending, UsageKey, UsageSums
from serve.limits.store.messages import Spent

_MONTH = "%Y-%m"
_ASKED_S = 120.0  # scopes that no replica has asked for in that time are not told of


class SharedSpending:
    """This cluster's book, whose spending counts what other clusters spent.

    Args:
        book: Keeps usage. Its sums of a month only grow, so that the store needs no more than the newest.
        calendar: The time of day.
    """

    def __init__(self, book: UsageBook, calendar: Callable[[], datetime] = lambda: datetime.now(UTC)) -> None:
        self._book = book
        self._calendar = calendar
        self._asked: dict[str, datetime] = {}
        self._told: dict[str, Spent] = {}  # by the last message
        self._elsewhere: dict[tuple[str, str], float] = {}

    def add(
        self, replica: str, number: int, usage: Mapping[UsageKey, UsageSums], spent: Iterable[Spending], at: datetime
    ) -> None:
        """Adds what a report says; see `UsageBook.add`."""
        self._book.add(replica, number, usage, spent, at)

    def spending(self, scopes: Iterable[str], at: datetime) -> dict[str, float]:
        """Returns what scopes have spent in the month of a time, over all clusters as far as they are known."""
        own = self._book.spending(scopes, at)
        self._asked |= dict.fromkeys(own, at)
        month = at.strftime(_MONTH)
        return {scope: cost + self._elsewhere.get((month, scope), 0.0) for scope, cost in own.items()}

    def own(self) -> dict[str, Spent]:
        """Returns what the store should know."""
        now = self._calendar()
        self._asked = {scope: at for scope, at in self._asked.items() if (now - at).total_seconds() < _ASKED_S}
        month = now.strftime(_MONTH)
        costs = self._book.spending(self._asked, now)
        self._elsewhere = {key: cost for key, cost in self._elsewhere.items() if key[0] == month}
        self._told = {scope: Spent(self._book.identity, month, cost) for scope, cost in costs.items()}
        return self._told

    def learn(self, totals: Mapping[str, float]) -> None:
        """Takes what the store says of all clusters together."""
        for scope, total in totals.items():
            told = self._told[scope]
            self._elsewhere[told.month, scope] = max(0.0, total - told.cost)
