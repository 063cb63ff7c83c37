"""`specgate serve` and `specgate demo`, up to the start of Ray."""

import subprocess
import sys

import pytest

_UP_TO_RAY = """
import sys
from serve.cli import run

def prepared_environment():
    sys.exit(f"Ray was imported before: {'ray' in sys.modules}")

run.prepared_environment = prepared_environment
run.{command}(admin_port=0)
"""


@pytest.mark.parametrize("command", ["serve", "demo"])
def test_ray_is_imported_after_the_environment_that_it_reads_is_set(command: str) -> None:
    script = _UP_TO_RAY.replace("{command}", command)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == "Ray was imported before: False"
