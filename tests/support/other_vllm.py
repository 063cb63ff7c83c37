"""Our plug-ins against the Python code of another vLLM: `python tests/support/other_vllm.py 0.33.0`.

Downloads that version's wheel (some 340 MB; pip keeps it), unpacks its Python files to a temporary folder, and runs the
plug-ins' unit tests with them in place of the installed ones. Its compiled parts stay out: no engine runs.
"""

import os
import subprocess
import sys
import tempfile
import zipfile
from pathlib import Path

ROOT = Path(__file__).parents[2]
TESTS = ("tool_parsers", "reasoning_parsers", "tokenizer")


def unpack(wheel: Path, folder: Path) -> None:
    """Every file of a wheel but compiled ones."""
    with zipfile.ZipFile(wheel) as archive:
        names = [name for name in archive.namelist() if not name.endswith(".so") and "/vllm-rs" not in name]
        archive.extractall(folder, names)


def check(version: str) -> int:
    """Exit status of the tests."""
    with tempfile.TemporaryDirectory() as name:
        folder = Path(name)
        pip = [sys.executable, "-m", "pip", "download", "--quiet", "--disable-pip-version-check", "--no-deps"]
        subprocess.run([*pip, "--only-binary=:all:", f"--dest={folder}", f"vllm=={version}"], check=True)
        unpack(next(folder.glob("*.whl")), folder / "python")
        environment = {**os.environ, "PYTHONPATH": str(folder / "python")}
        ask = [sys.executable, "-W", "ignore", "-c", "import vllm; print(vllm.__version__)"]
        found = subprocess.run(
            ask, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        if found != version:
            sys.exit(f"asked for vLLM {version}, imported {found}")
        print(f"vLLM {found}", flush=True)
        tests = [f"tests/unit/engine/vllm/test_{part}.py" for part in TESTS]
        command = [sys.executable, "-m", "pytest", "-q", "-p", "no:cacheprovider", *tests]
        return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Which vLLM? For example: make check-vllm VERSION=0.33.0")
    sys.exit(check(sys.argv[1]))
