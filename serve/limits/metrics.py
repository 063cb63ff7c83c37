"""Usage, refusals and the age of what the ledger said, as metrics."""

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from serve.limits.accounts import Accounts

_FIELDS = {
    "requests": "requests_per_minute", "tokens": "tokens_per_minute", "concurrency": "concurrency",
    "month": "tokens_per_month",
}  # fmt: skip


class LimitMetrics:
    """Shows what one gateway replica counted.

    Args:
        meter: Makes the instruments.
        accounts: Counts.
    """

    def __init__(self, meter: Meter, accounts: Accounts) -> None:
        self._accounts = accounts
        meter.create_observable_counter(
            "specgate.tokens", [self._tokens], "1", "Tokens by tenant and kind; tenants beyond the 200th as `other`"
        )
        meter.create_observable_counter(
            "specgate.limits.refused",
            [self._refused],
            "1",
            "Requests that a limit refused, or would have (`shadow`)",
        )
        meter.create_observable_counter(
            "specgate.limits.used", [self._used], "1", "Requests and weighted tokens, as limits count them"
        )
        meter.create_observable_gauge(
            "specgate.limits.limit",
            [self._limits],
            "1",
            "Limits of tenants: `requests` and `tokens` per minute, `concurrency`, weighted tokens per `month`",
        )
        meter.create_observable_gauge(
            "specgate.limits.in_use", [self._in_use], "1", "Requests under way of tenants with a limit of concurrency"
        )
        meter.create_observable_gauge(
            "specgate.limits.month_spent", [self._spent], "1", "Weighted tokens of this month, of tenants with a quota"
        )
        meter.create_observable_gauge(
            "specgate.ledger.age",
            [self._age],
            "s",
            "Time since the ledger of limits, and the store that clusters share, last answered",
        )

    def _tokens(self, _: CallbackOptions) -> Iterable[Observation]:
        for (tenant, model, kind), count in self._accounts.tally.tokens.copy().items():
            yield Observation(count, {"tenant": tenant, "model": model, "kind": kind})

    def _refused(self, _: CallbackOptions) -> Iterable[Observation]:
        for (tenant, limit, mode), count in self._accounts.tally.refused.copy().items():
            yield Observation(count, {"tenant": tenant, "limit": limit, "mode": mode})

    def _used(self, _: CallbackOptions) -> Iterable[Observation]:
        for (tenant, limit), amount in self._accounts.tally.used.copy().items():
            yield Observation(amount, {"tenant": tenant, "limit": limit})

    def _limits(self, _: CallbackOptions) -> Iterable[Observation]:
        for tenant, limits, *_rest in self._accounts.standings():
            for limit, field in _FIELDS.items():
                if (value := getattr(limits, field)) is not None:
                    yield Observation(value, {"tenant": tenant, "limit": limit})

    def _in_use(self, _: CallbackOptions) -> Iterable[Observation]:
        for tenant, limits, in_use, _spent in self._accounts.standings():
            if limits.concurrency is not None:
                yield Observation(in_use, {"tenant": tenant})

    def _spent(self, _: CallbackOptions) -> Iterable[Observation]:
        for tenant, limits, _in_use, spent in self._accounts.standings():
            if limits.tokens_per_month is not None:
                yield Observation(spent, {"tenant": tenant})

    def _age(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._accounts.ledger_age_s, {"mode": "alone" if self._accounts.alone else "shared"})
