"""Known vulnerabilities without a network: which versions a copy of OSV's database is about."""

import json
import runpy
import zipfile
from pathlib import Path
from typing import Any

import pytest

SCRIPT = Path(__file__).parents[2] / ".ci/audit_offline.py"


def audit(folder: Path, entries: list[dict[str, Any]], pins: str = "Some.Package==1.5 \\\n  --hash=sha256:00\n") -> int:
    with zipfile.ZipFile(folder / "all.zip", "w") as archive:
        for number, entry in enumerate(entries):
            archive.writestr(
                f"{number}.json", json.dumps({"id": f"X-{number}", "modified": "2026-11-20T00:00:00Z", **entry})
            )
    (folder / "pins.txt").write_text(pins)
    return int(runpy.run_path(str(SCRIPT))["main"](folder / "all.zip", folder / "pins.txt"))


def entry(
    *events: dict[str, str], versions: tuple[str, ...] = (), name: str = "some-package", **more: Any
) -> dict[str, Any]:
    ranges = [{"type": "ECOSYSTEM", "events": list(events)}] if events else []
    return {
        "affected": [{"package": {"ecosystem": "PyPI", "name": name}, "ranges": ranges, "versions": versions}],
        **more,
    }


FIRST = {"introduced": "0"}


@pytest.mark.parametrize(
    ("given", "hit"),
    [
        (entry(FIRST), True), (entry(FIRST, {"fixed": "1.5"}), False), (entry(FIRST, {"fixed": "1.5.1"}), True),
        (entry(FIRST, {"last_affected": "1.5"}), True), (entry(FIRST, {"last_affected": "1.4"}), False),
        (entry({"introduced": "1.6"}), False), (entry(FIRST, {"fixed": "1.0"}, {"introduced": "1.5"}), True),
        (entry(versions=("1.5.0",)), True), (entry(versions=("1.4", "odd")), False),
        (entry(FIRST, name="another"), False), (entry(FIRST, withdrawn="2026-01-01"), False),
    ],
)  # fmt: skip
def test_a_version_is_found_where_it_is_affected(
    tmp_path: Path, given: dict[str, Any], hit: bool, capsys: pytest.CaptureFixture[str]
) -> None:
    assert audit(tmp_path, [given, entry(name="other")]) == int(hit)
    told = capsys.readouterr().out
    assert ("some-package 1.5: X-0" in told) is hit
    assert "the newest of 2026-11-20" in told


def test_what_is_no_database_is_told_aloud(tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    assert audit(tmp_path, []) == 2
    assert "SKIPPED" in capsys.readouterr().err
