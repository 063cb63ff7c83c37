"""Experiment E1: the step-time surface of one engine and the price of opt-outs: `python -m bench.gpu`.

Each draft length is measured in a process of its own, and kept in `--out` once it is: a run that is cut short goes on
where it was. One that fails does not stop the others; what it had measured is kept under `unfinished`, with its exit
code, and the next run tries it again. `--dry-run` takes the tiny models of this repository on the CPU; its figures mean
nothing. See `bench/gpu/README.md`.
"""

import argparse
import json
import os
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from tempfile import NamedTemporaryFile
from typing import Any

ROOT = Path(__file__).parents[2]
DRY: Mapping[str, Any] = {
    "model": str(ROOT / "models" / "tiny-qwen"),
    "drafter": str(ROOT / "models" / "tiny-qwen-draft"),
    "method": "draft_model",
    "batches": [1, 4],
    "drafts": [0, 1],
    "tokens": 24,
    "engine": {"max_model_len": 256, "enforce_eager": True, "dtype": "float32"},
    "env": {"VLLM_CPU_KVCACHE_SPACE": "1", "VLLM_CPU_OMP_THREADS_BIND": "nobind", "OMP_NUM_THREADS": "1"},
}


def main() -> None:
    """Measures every draft length that is not in `--out` yet; exit code 1 if one fails."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--plan", type=Path, help="JSON with the members of DRY; a full run needs one")
    arguments.add_argument("--dry-run", action="store_true", help="tiny models on the CPU")
    arguments.add_argument("--out", type=Path, required=True, help="the results, written after each draft length")
    chosen = arguments.parse_args()
    if chosen.dry_run == (chosen.plan is not None):
        arguments.error("give --plan or --dry-run")
    plan: dict[str, Any] = dict(DRY) if chosen.dry_run else json.loads(chosen.plan.read_text())
    known = json.loads(chosen.out.read_text()) if chosen.out.exists() else {"plan": plan, "runs": {}}
    if known["plan"] != plan:
        arguments.error(f"{chosen.out} holds the results of another plan")
    runs: dict[str, Any] = known["runs"]
    unfinished: dict[str, Any] = known.get("unfinished", {})
    for drafts in map(str, plan["drafts"]):
        if drafts in runs:
            continue
        unfinished.pop(drafts, None)
        code, figures = _measured(plan, int(drafts))
        if code:
            unfinished[drafts] = {"exit_code": code, **figures}
        else:
            runs[drafts] = figures
        chosen.out.write_text(json.dumps(result(plan, runs, unfinished), indent=1) + "\n")
        state = f"failed with exit code {code}" if code else "measured"
        print(f"draft length {drafts}: {state}; {len(runs)} of {len(plan['drafts'])} are", file=sys.stderr, flush=True)
    print(chosen.out.read_text())
    raise SystemExit(len(runs) < len(plan["drafts"]))


def result(plan: Mapping[str, Any], runs: Mapping[str, Any], unfinished: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the results, with the step times as a simulated pool's `economics` take them.

    Args:
        plan: With the members of `DRY`.
        runs: The last of `EngineRun.figures` by draft length, as far as they are measured.
        unfinished: What failed runs had measured.
    """
    drafts = [each for each in plan["drafts"] if str(each) in runs]
    step_ms = [runs[str(each)]["step_ms"] for each in drafts]
    times = {"drafts": drafts, "batches": plan["batches"], "step_ms": step_ms}
    return {"plan": plan, "economics": {"step_times": times}, "runs": runs, "unfinished": unfinished}


def _measured(plan: Mapping[str, Any], drafts: int) -> tuple[int, dict[str, Any]]:
    """Measures one draft length in a process of its own, which takes the engine's memory with it.

    Returns:
        Its exit code and what it has measured.
    """
    with NamedTemporaryFile("r") as file:
        done = subprocess.run(
            [sys.executable, "-m", "bench.gpu.engine_run", file.name], input=json.dumps({**plan, "drafts": drafts}),
            env={**os.environ, **plan.get("env", {})}, text=True, check=False, cwd=ROOT,
        )  # fmt: skip
        return done.returncode, json.loads(file.read() or "{}")


if __name__ == "__main__":
    main()
