"""The number of replicas a pool needs: Ray Serve's rule, with requests counted where they run."""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

ONGOING = "ongoing_requests"


def by_ongoing_requests(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Ray Serve's hook: returns enough replicas for all requests that run or wait, at the target per replica.

    Ray Serve's own policy counts calls through handles and sees none of our requests: a handle only reserves a slot,
    the request itself goes over HTTP. So replicas report what runs there (`record_autoscaling_stats`), and the
    gateways' handles count what waits. Ray Serve clamps the result to the limits and applies its delays.
    """
    running = math.fsum((context.aggregated_metrics or {}).get(ONGOING, {}).values())
    waiting = context.total_queued_requests or 0.0
    return (running + waiting) / context.config.get_target_ongoing_requests(), {}
