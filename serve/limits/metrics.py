"""Usage, refusals and the age of what the ledger said, as metrics."""

from collections.abc import Iterable

from opentelemetry.metrics import CallbackOptions, Meter, Observation

from serve.limits.accounts import Accounts


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
        meter.create_observable_gauge(
            "specgate.ledger.age", [self._age], "s", "Time since the ledger of limits last answered this replica"
        )

    def _tokens(self, _: CallbackOptions) -> Iterable[Observation]:
        for (tenant, model, kind), count in self._accounts.tally.tokens.copy().items():
            yield Observation(count, {"tenant": tenant, "model": model, "kind": kind})

    def _refused(self, _: CallbackOptions) -> Iterable[Observation]:
        for (tenant, limit, mode), count in self._accounts.tally.refused.copy().items():
            yield Observation(count, {"tenant": tenant, "limit": limit, "mode": mode})

    def _age(self, _: CallbackOptions) -> Iterable[Observation]:
        yield Observation(self._accounts.ledger_age_s, {"mode": "alone" if self._accounts.alone else "shared"})
