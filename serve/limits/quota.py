"""Monthly quotas: which month it is, what was spent in it, whether that is all, and when the next one begins.

What is spent belongs to the month, by UTC, in which the ledger books it: a second later at most, unless the ledger is
away. A replica knows the spending of one month, and forgets it by its own clock: until the ledger speaks of the new
month, nothing of the old one may refuse a request.
"""

from collections.abc import Callable, Mapping
from datetime import UTC, datetime
from typing import NamedTuple

from serve.errors import QuotaError

_SOONEST_S = 1.0  # that a client is told to wait, should the month end meanwhile


class Quota(NamedTuple):
    """A monthly quota.

    Attributes:
        scope: As of `LimitId`.
        tokens: Weighted ones, of a month.
        shadow: It is counted, and refuses nothing.
    """

    scope: str
    tokens: int
    shadow: bool


def month_of(at: datetime) -> str:
    """Returns the month of a time in UTC; of two months, the later one is greater."""
    return f"{at:%Y-%m}"


def _end_of(month: str) -> datetime:
    year, number = map(int, month.split("-"))
    return datetime(year + number // 12, number % 12 + 1, 1, tzinfo=UTC)


class Spending:
    """What scopes with a quota have spent in this month, as one replica knows it. All amounts are weighted tokens."""

    def __init__(self, calendar: Callable[[], datetime]) -> None:
        self._calendar = calendar
        self._month = ""  # that the ledger's figures are of
        self._booked: dict[str, float] = {}  # by scope: what the ledger has, and what it is being told
        self._unreported: dict[str, float] = {}

    def add(self, scope: str, cost: float) -> None:
        self._unreported[scope] = self._unreported.get(scope, 0.0) + cost

    def of(self, scope: str) -> float:
        self._turn()
        return self._known(scope)

    def is_over(self, quota: Quota) -> bool:
        # Most requests find enough left, in whatever month that is: only one that does not looks at the calendar.
        return self._known(quota.scope) >= quota.tokens and self.of(quota.scope) >= quota.tokens

    def refusal(self, quota: Quota) -> QuotaError:
        """Returns the error for a request whose quota is over. It says when the next month begins."""
        kind, _, name = quota.scope.partition(":")
        begins = _end_of(self._month)  # and not that of the clock, which may have struck since `is_over`
        message = (
            f"The quota of {quota.tokens} weighted tokens a month for the {kind} {name!r} is spent "
            f"({self._known(quota.scope):.0f}). A new one begins on {begins:%Y-%m-%d}, by UTC."
        )
        return QuotaError(message, retry_after_s=max(_SOONEST_S, (begins - self._calendar()).total_seconds()))

    def take(self) -> Mapping[str, float]:
        """Returns what was spent since the last call, by scope, to be reported."""
        self._turn()
        taken, self._unreported = self._unreported, {}
        for scope, cost in taken.items():  # until the ledger's next answer counts it
            self._booked[scope] = self._booked.get(scope, 0.0) + cost
        return taken

    def adopt(self, month: str, spent: Mapping[str, float]) -> None:
        """Takes what the ledger says of a month. An answer that was late may speak of the last one, which is over."""
        if month < month_of(self._calendar()):
            return
        if month != self._month:
            self._begin(month)
        self._booked.update(spent)

    def _known(self, scope: str) -> float:
        return self._booked.get(scope, 0.0) + self._unreported.get(scope, 0.0)

    def _turn(self) -> None:
        """Forgets the last month once it is over. The ledger's clock may be ahead, in the next month already."""
        if (month := month_of(self._calendar())) > self._month:
            self._begin(month)

    def _begin(self, month: str) -> None:
        self._month = month
        self._booked.clear()
