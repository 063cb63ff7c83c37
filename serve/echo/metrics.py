"""The echo canary as metrics."""

from serve.echo.live import EchoCanary
from serve.telemetry.metrics import Metrics


def show_echo(metrics: Metrics, canary: EchoCanary) -> None:
    """Shows what pools have copied for one gateway replica, and what that took: no tenant's usage has it."""
    metrics.read(
        "counter", "specgate_echo_identifiers_total", "Identifiers that the echo canary had copied, by outcome",
        ["model", "pool", "outcome"], canary.identifiers.items,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_echo_tokens_total", "Tokens that the echo canary used, charged to no tenant",
        ["model", "pool"], canary.tokens.items,
    )  # fmt: skip
