"""Usage, refusals and the age of what the ledger said, as metrics."""

from collections.abc import Callable, Iterator

from serve.limits.accounts import Accounts
from serve.limits.request_limits import Standing
from serve.telemetry.metrics import Metrics, Reading

_FIELDS = {
    "requests": "requests_per_minute", "tokens": "tokens_per_minute", "concurrency": "concurrency",
    "month": "tokens_per_month",
}  # fmt: skip


def show_limits(metrics: Metrics, accounts: Accounts) -> None:
    def limits() -> Iterator[tuple[tuple[str, str], float]]:
        for standing in accounts.standings():
            for limit, field in _FIELDS.items():
                if (value := getattr(standing.limits, field)) is not None:
                    yield (standing.tenant, limit), value

    def of_tenants(field: str, value: Callable[[Standing], float]) -> Reading:
        """Reads a number of each tenant that has a limit."""
        return lambda: (
            ((standing.tenant,), value(standing))
            for standing in accounts.standings()
            if getattr(standing.limits, field) is not None
        )

    tally = accounts.tally
    metrics.read(
        "counter",
        "specgate_tokens_total",
        "Tokens by tenant and kind; tenants beyond the 200th as `other`",
        ["tenant", "model", "kind"],
        tally.tokens.items,
    )
    metrics.read(
        "counter",
        "specgate_limits_refused_total",
        "Requests that a limit refused, or would have (`shadow`)",
        ["tenant", "limit", "mode"],
        tally.refused.items,
    )
    metrics.read(
        "counter",
        "specgate_limits_used_total",
        "Requests and weighted tokens, as limits count them",
        ["tenant", "limit"],
        tally.used.items,
    )
    metrics.read(
        "gauge",
        "specgate_limits_limit",
        "Limits of tenants: `requests` and `tokens` per minute, `concurrency`, weighted tokens per `month`",
        ["tenant", "limit"],
        limits,
    )
    metrics.read(
        "gauge",
        "specgate_limits_in_use",
        "Requests under way of tenants with a limit of concurrency",
        ["tenant"],
        of_tenants("concurrency", lambda standing: standing.in_use),
    )
    metrics.read(
        "gauge",
        "specgate_limits_month_spent",
        "Weighted tokens of this month, of tenants with a quota",
        ["tenant"],
        of_tenants("tokens_per_month", lambda standing: standing.spent),
    )
    metrics.read(
        "gauge", "specgate_ledger_age_seconds",
        "Time since the ledger of limits, or its store, last answered",
        ["mode"], lambda: [(("alone" if accounts.alone else "shared",), accounts.ledger_age_s)],
    )  # fmt: skip
