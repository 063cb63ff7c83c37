"""`specgate serve` and `specgate demo`, up to the start of Ray."""

import subprocess
import sys

import pytest

_UP_TO_RAY = """
import sys
from {module} import {command}

def prepared_environment():
    sys.exit(f"Ray was imported before: {'ray' in sys.modules}")

sys.modules["{module}"].prepared_environment = prepared_environment
{command}(admin_port=0)
"""


@pytest.mark.parametrize(("module", "command"), [("serve.cli.run", "serve"), ("lab.cli.demo", "demo")])
def test_ray_is_imported_after_the_environment_that_it_reads_is_set(module: str, command: str) -> None:
    script = _UP_TO_RAY.replace("{module}", module).replace("{command}", command)
    ended = subprocess.run([sys.executable, "-c", script], capture_output=True, text=True, check=False)
    assert ended.stderr.strip() == "Ray was imported before: False"
