"""Minutes on a GPU are not lost by one draft length that fails."""

import json
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.gpu.__main__ import main

PLAN = {"model": "m", "drafter": "d", "method": "eagle3", "batches": [1, 8], "drafts": [0, 1, 3], "engine": {}}


def played(monkeypatch: pytest.MonkeyPatch, out: Path, failing: set[int]) -> tuple[Any, list[int]]:
    """Runs the experiment with engines that fail after their first batch; returns its results and what was started."""
    started = []

    def engine(command: list[str], *, input: str, **_: Any) -> subprocess.CompletedProcess[str]:
        drafts = json.loads(input)["drafts"]
        started.append(drafts)
        times = [1.0 + drafts] if drafts in failing else [1.0 + drafts, 2.0 + drafts]
        Path(command[-1]).write_text(json.dumps({"step_ms": times}))
        return subprocess.CompletedProcess(command, int(drafts in failing))

    plan = out.with_name("plan.json")
    plan.write_text(json.dumps(PLAN))
    monkeypatch.setattr(sys, "argv", ["bench.gpu", "--plan", str(plan), "--out", str(out)])
    monkeypatch.setattr(subprocess, "run", engine)
    with pytest.raises(SystemExit) as end:
        main()
    assert bool(end.value.code) == bool(failing)
    return json.loads(out.read_text()), started


def test_one_that_fails_keeps_what_it_measured_and_does_not_stop_the_others(
    monkeypatch: pytest.MonkeyPatch, tmp_path: Path, capsys: pytest.CaptureFixture[str]
) -> None:
    found, started = played(monkeypatch, tmp_path / "e1.json", {1})
    assert started == [0, 1, 3]
    assert found["unfinished"] == {"1": {"exit_code": 1, "step_ms": [2.0]}}
    assert found["economics"]["step_times"]["drafts"] == [0, 3]
    assert "draft length 1: failed with exit code 1; 1 of 3 are" in capsys.readouterr().err


def test_the_same_command_measures_only_what_is_missing(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    played(monkeypatch, tmp_path / "e1.json", {1})
    found, started = played(monkeypatch, tmp_path / "e1.json", set())
    assert started == [1]
    assert found["unfinished"] == {}
    assert found["economics"]["step_times"]["step_ms"] == [[1.0, 2.0], [2.0, 3.0], [4.0, 5.0]]
