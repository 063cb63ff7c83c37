"""A month's quota refuses what is beyond it in that month, and nothing in the next."""

from dataclasses import dataclass
from datetime import UTC, datetime, timedelta

import pytest
from opentelemetry.trace import INVALID_SPAN
from support.limits import LedgerLink

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.errors import QuotaError, SharedStateError
from serve.limits.accounts import Accounts
from serve.limits.book import UsageBook
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger
from serve.limits.quota import Quota, Spending

SPENT = Principal("k", Tenant("red", limits=Limits(tokens_per_month=100)), frozenset({"infer"}))
ANSWER = b'{"choices":[{"message":{"content":"hi"}}],"usage":{"prompt_tokens":10,"completion_tokens":45}}'
QUOTA = Quota("tenant:red", 100, False)
LATE = datetime(2026, 11, 30, 23, 59, 58, tzinfo=UTC)
MIDNIGHT = datetime(2026, 12, 1, tzinfo=UTC)


@dataclass
class Site:
    """One gateway replica and its ledger, each with a calendar, in the last seconds of November."""

    now: datetime = LATE
    ahead: timedelta = timedelta(0)  # the ledger's clock

    def __post_init__(self) -> None:
        self.ledger = Ledger(UsageBook(), 0.0, calendar=lambda: self.now + self.ahead)
        self.link = LedgerLink(self.ledger)
        self.accounts = Accounts(RateLimitsConfig(), self.link, calendar=lambda: self.now)

    async def request(self) -> None:
        """One request of 100 weighted tokens, which is the whole quota."""
        charge = await self.accounts.reserve(SPENT, "m", "plain", RequestSize(100), [])
        meter = charge.attempt("p", False)
        meter.answered(200)
        meter.whole(ANSWER)
        charge.settle(200, INVALID_SPAN)

    async def refusal(self) -> QuotaError:
        with pytest.raises(QuotaError) as refused:
            await self.request()
        return refused.value

    @property
    def spent(self) -> float:
        """The month's spending as metrics and the dashboard have it."""
        (standing,) = self.accounts.standings()
        return standing.spent


async def test_a_quota_refuses_once_it_is_spent_whether_or_not_the_ledger_knows() -> None:
    site = Site()
    await site.request()
    assert (await site.refusal()).headers["retry-after"] == "2"
    await site.accounts.sync()
    assert (await site.refusal()).headers["retry-after"] == "2"
    assert site.spent == 100


async def test_a_new_month_begins_at_midnight_and_not_with_the_next_report() -> None:
    """Requests between the two were refused by what was spent last month, and told to wait for a whole new one."""
    site = Site()
    await site.request()
    await site.accounts.sync()
    site.now = MIDNIGHT
    assert site.spent == 0
    await site.request()
    assert (await site.refusal()).headers["retry-after"] == str(31 * 86_400)


async def test_what_the_ledger_said_before_midnight_and_comes_after_it_refuses_nothing() -> None:
    """It was taken for this month's until the next report."""
    site = Site()
    await site.request()

    async def until_midnight() -> None:
        site.now = MIDNIGHT

    site.link.on_the_way = until_midnight
    await site.accounts.sync()
    assert site.spent == 0
    await site.request()


async def test_an_answer_of_last_month_that_comes_again_refuses_nothing_though_it_is_the_ledgers_last() -> None:
    """It was taken for this month's for as long as the ledger was away."""
    site = Site()
    await site.request()

    async def lose() -> None:
        site.link.on_the_way = die
        raise SharedStateError("The answer is lost.")

    async def die() -> None:
        site.link.is_dead = True

    site.link.on_the_way = lose
    await site.accounts.sync()
    site.now = MIDNIGHT
    await site.accounts.sync()
    assert site.link.calls == 3, "one is lost, comes again, and the next one fails"
    await site.request()


async def test_while_the_ledger_is_away_the_month_ends_all_the_same() -> None:
    site = Site()
    await site.request()
    await site.accounts.sync()
    site.link.is_dead = True
    site.now = MIDNIGHT
    await site.accounts.sync()
    await site.request()


@pytest.mark.parametrize("ahead_s", [-1, 1])
async def test_clocks_that_differ_by_a_second_carry_nothing_into_the_new_month(ahead_s: int) -> None:
    site = Site(ahead=timedelta(seconds=ahead_s))
    await site.request()
    for second in range(5):
        await site.accounts.sync()
        site.now += timedelta(seconds=1)
        assert site.spent == (0 if site.now >= MIDNIGHT or (ahead_s > 0 and second > 0) else 100)
    await site.request()


async def test_a_clock_that_was_ahead_and_comes_back_forgets_nothing_of_the_month() -> None:
    site = Site()
    await site.request()
    await site.accounts.sync()
    site.now += timedelta(days=1)
    assert site.spent == 0
    site.now = LATE
    await site.accounts.sync()
    assert "2026-12-01" in (await site.refusal()).message


@pytest.mark.parametrize(
    ("now", "begins", "after_s"),
    [
        (datetime(2026, 11, 30, 23, 59, 59, 500_000, UTC), "2026-12-01", 1),
        (datetime(2026, 12, 31, 12, tzinfo=UTC), "2027-01-01", 43_200),
        (datetime(2027, 1, 31, tzinfo=UTC), "2027-02-01", 86_400),
        (datetime(2028, 2, 1, tzinfo=UTC), "2028-03-01", 29 * 86_400),
    ],
)
def test_a_refusal_says_when_the_next_month_begins(now: datetime, begins: str, after_s: int) -> None:
    spending = Spending(lambda: now)
    spending.add("tenant:red", 120.0)
    assert spending.is_over(QUOTA)
    error = spending.refusal(QUOTA)
    assert f"begins on {begins}" in error.message
    assert error.headers == {"retry-after": str(after_s), "x-should-retry": "false"}


def test_a_refusal_at_the_stroke_of_midnight_still_speaks_of_the_month_that_was_spent() -> None:
    clock = [LATE]
    spending = Spending(lambda: clock[0])
    spending.add("tenant:red", 120.0)
    assert spending.is_over(QUOTA)
    clock[0] = MIDNIGHT
    error = spending.refusal(QUOTA)
    assert "begins on 2026-12-01" in error.message
    assert error.headers["retry-after"] == "1"


def test_what_was_taken_to_be_reported_still_counts_and_is_not_taken_again() -> None:
    spending = Spending(lambda: LATE)
    spending.add("tenant:red", 60.0)
    assert spending.take() == {"tenant:red": 60.0}
    spending.add("tenant:red", 50.0)
    assert spending.is_over(QUOTA)
    assert spending.take() == {"tenant:red": 50.0}
    spending.adopt("2026-11", {"tenant:red": 90.0})
    assert spending.of("tenant:red") == 90.0
    assert spending.take() == {}
