"""Shared by all tests: Ray's flags are read when Ray is imported, so they are set before any test module is."""

import sys
from pathlib import Path

sys.path.insert(0, str(Path(__file__).parent))  # for `support`, which importlib mode does not put on the path

from serve.local import prepare_environment

prepare_environment()
