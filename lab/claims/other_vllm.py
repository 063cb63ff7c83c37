"""Another vLLM than the installed one: its Python files, which is enough for whatever needs no model."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve.errors import ConfigError

# What old versions import and newer ones no longer do, none of it compiled.
_ONCE_NEEDED = ("gguf", "diskcache")


@contextmanager
def unpacked(version: str) -> Iterator[Path]:
    """Downloads the wheel of a version (some 300 MB; pip keeps it); yields a folder for `PYTHONPATH`.

    Args:
        version: Such as `0.33.0`.

    Raises:
        ConfigError: There is no such wheel.
    """
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        for package in (f"vllm=={version}", *_ONCE_NEEDED):
            _download(package, folder)
        python = folder / "python"
        for wheel in folder.glob("*.whl"):
            with zipfile.ZipFile(wheel) as archive:
                members = [each for each in archive.namelist() if not each.endswith(".so") and "/vllm-rs" not in each]
                archive.extractall(python, members)
        yield python


def _download(package: str, folder: Path) -> None:
    pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
    done = subprocess.run(
        [*pip, "--only-binary=:all:", f"--dest={folder}", package], check=False, capture_output=True, text=True
    )
    if done.returncode:
        raise ConfigError(f"pip can't download {package}: {done.stderr.strip().splitlines()[-1]}")
