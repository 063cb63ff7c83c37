"""The number of replicas that a pool asks for."""

from types import SimpleNamespace
from typing import Any

import pytest

from serve.routing.autoscaling import ONGOING, by_ongoing_requests


def context(running: dict[str, float] | None, waiting: float | None, target: float = 4) -> Any:
    return SimpleNamespace(
        aggregated_metrics=None if running is None else {ONGOING: running},
        total_queued_requests=waiting,
        config=SimpleNamespace(get_target_ongoing_requests=lambda: target),
    )


@pytest.mark.parametrize(
    ("running", "waiting", "wanted"),
    [({"a": 4, "b": 2}, 2, 2), ({"a": 4}, 0, 1), ({"a": 0}, 0, 0), (None, None, 0), (None, 9, 2.25)],
)
def test_what_runs_and_what_waits_count_alike(running: Any, waiting: float | None, wanted: float) -> None:
    assert by_ongoing_requests(context(running, waiting))[0] == wanted
