"""How many replicas a pool needs: Ray Serve's rule, with the requests counted where they are."""

import math
from typing import Any

from ray.serve.config import AutoscalingContext

ONGOING = "ongoing_requests"


def by_ongoing_requests(context: AutoscalingContext) -> tuple[float, dict[str, Any]]:
    """Ray Serve's hook: as many replicas as the requests that run or wait need, at the target per replica.

    Ray Serve's own policy counts calls through handles and sees none of ours: a handle reserves a slot, and the request
    itself goes over HTTP. So replicas report what runs there (`record_autoscaling_stats`); the gateways' handles count
    what waits. Ray Serve keeps the result within the limits and applies its delays.
    """
    running = math.fsum((context.aggregated_metrics or {}).get(ONGOING, {}).values())
    waiting = context.total_queued_requests or 0.0
    return (running + waiting) / context.config.get_target_ongoing_requests(), {}
