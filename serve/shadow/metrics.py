"""Candidates' answers as metrics."""

from serve.shadow.live import Shadows
from serve.telemetry.metrics import Metrics


def show_shadows(metrics: Metrics, shadows: Shadows) -> None:
    """Shows the answers of candidates as one gateway replica has judged them."""
    metrics.read(
        "counter", "specgate_shadow_answers_total", "Answers of candidate pools to copies of requests, by outcome",
        ["model", "pool", "outcome"],
        shadows.totals,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_shadow_skipped_total", "Copies skipped because of the load",
        ["model", "pool"], shadows.skipped.items,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_shadow_faults_total", "Comparisons with a candidate that failed in the gateway's own code",
        ["model", "pool"], shadows.faults.items,
    )  # fmt: skip
