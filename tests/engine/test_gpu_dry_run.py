"""Experiment E1 runs to its end on a real engine, so that minutes on a GPU are not spent on its scripts."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.gpu.__main__ import DRY, ROOT

pytestmark = pytest.mark.engine


def test_an_engine_is_measured_once_and_opted_out_requests_draft_nothing(tmp_path: Path) -> None:
    plan, out = tmp_path / "plan.json", tmp_path / "e1.json"
    plan.write_text(json.dumps({**DRY, "batches": [1, 2], "drafts": [1], "tokens": 8}))
    command = [sys.executable, "-m", "bench.gpu", "--plan", str(plan), "--out", str(out)]
    subprocess.run(command, check=True, cwd=ROOT, timeout=600)
    found = json.loads(out.read_text())
    (times,) = found["economics"]["step_times"]["step_ms"]
    assert len(times) == 2
    assert min(times) > 0
    by_share = {each["share"]: each["draft_tokens"] for each in found["runs"]["1"]["opt_out"]}
    assert by_share[0.0] > by_share[0.5] > by_share[1.0] == 0
    for each in found["runs"]["1"]["opt_out"]:
        assert each["steps_none"] > 0, "the CPU has no CUDA graphs"
        assert each["steps_full"] == each["steps_piecewise"] == 0
    again = subprocess.run(command, check=True, cwd=ROOT, timeout=60, capture_output=True, text=True)
    assert json.loads(again.stdout) == found, "what is measured is not measured again"
