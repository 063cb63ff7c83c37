"""Looks pinned versions up in a copy of OSV's database: `audit_offline.py all.zip requirements.txt ...`.

The copy is https://osv-vulnerabilities.storage.googleapis.com/PyPI/all.zip. Exits with 1 if a version has a known
vulnerability, and with 2 if the copy can't be read: then nothing is known.
"""

import json
import re
import sys
import zipfile
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

from packaging.utils import canonicalize_name
from packaging.version import InvalidVersion, Version

_PIN = re.compile(r"^([A-Za-z0-9._-]+)(?:\[[a-z,]+\])?==([^\s;]+)", re.MULTILINE)
Pins = Mapping[str, set[str]]


def main(database: Path, *requirements: Path) -> int:
    """Prints what is known of the versions, and how old that is; returns the exit code."""
    pins = pinned(path.read_text("utf-8") for path in requirements)
    try:
        with zipfile.ZipFile(database) as archive:
            entries = [json.loads(archive.read(name)) for name in archive.namelist() if name.endswith(".json")]
        newest = max(entry["modified"] for entry in entries)
        found = sorted(findings(entries, pins))
    except (OSError, ValueError, KeyError, TypeError, zipfile.BadZipFile) as error:
        print(
            f"specgate: SKIPPED: {database} is no copy of OSV's database ({error!r}): nothing is known", file=sys.stderr
        )
        return 2
    for line in found:
        print(line)
    total = sum(map(len, pins.values()))
    print(f"{total} versions looked up in {len(entries)} entries, the newest of {newest[:10]}: {len(found)} findings")
    return 1 if found else 0


def pinned(texts: Iterator[str]) -> Pins:
    """Returns the versions of each package in some requirements."""
    pins: dict[str, set[str]] = {}
    for text in texts:
        for name, version in _PIN.findall(text):
            pins.setdefault(canonicalize_name(name), set()).add(version)
    return pins


def findings(entries: list[Mapping[str, Any]], pins: Pins) -> Iterator[str]:
    """Yields a line for each version that an entry is about."""
    for entry in entries:
        if entry.get("withdrawn"):
            continue
        for affected in entry.get("affected", ()):
            package = affected.get("package", {})
            name = canonicalize_name(package.get("name", ""))
            for version in pins.get(name, ()) if package.get("ecosystem") == "PyPI" else ():
                if is_affected(version, affected):
                    yield f"{name} {version}: {entry['id']} {entry.get('summary', '')}".rstrip()


def is_affected(version: str, affected: Mapping[str, Any]) -> bool:
    """Returns True if a version is listed, or lies between an event that introduces the fault and one that ends it."""
    try:
        here = Version(version)
    except InvalidVersion:
        return version in affected.get("versions", ())
    if any(_is(here, each) for each in affected.get("versions", ())):
        return True
    return any(_within(here, each["events"]) for each in affected.get("ranges", ()) if each.get("type") == "ECOSYSTEM")


def _is(here: Version, text: str) -> bool:
    try:
        return Version(text) == here
    except InvalidVersion:
        return False


def _within(here: Version, events: list[Mapping[str, str]]) -> bool:
    inside = False
    for event in events:  # in the order of versions
        ((kind, text),) = event.items()
        try:
            at = Version("0.dev0" if text == "0" else text)
        except InvalidVersion:
            continue
        if kind == "introduced" and here >= at:
            inside = True
        elif (kind == "fixed" and here >= at) or (kind == "last_affected" and here > at):
            inside = False
    return inside


if __name__ == "__main__":
    sys.exit(main(*map(Path, sys.argv[1:])))
