"""What a replica does with its memory when it has started."""

import platform
import subprocess
import sys

import pytest

_LONG_BODIES = """
import resource
from serve.gateway.ingress import settle_memory
settle_memory()
def faults(times):
    before = resource.getrusage(resource.RUSAGE_SELF).ru_minflt
    for _ in range(times):
        held = [bytes(520_000) for _ in range(6)]
        del held
    return resource.getrusage(resource.RUSAGE_SELF).ru_minflt - before
faults(5)
print(faults(50))
"""


@pytest.mark.skipif(platform.libc_ver()[0] != "glibc", reason="another C library keeps what it likes")
def test_memory_of_long_bodies_is_not_fetched_from_the_system_again_for_each() -> None:
    done = subprocess.run([sys.executable, "-c", _LONG_BODIES], capture_output=True, text=True, check=True)
    assert int(done.stdout) < 2_000  # pages; fetched again, each of the 300 blocks has 127
