"""Experiment E1: the step-time surface of one engine and the price of opt-outs: `python -m bench.gpu`.

Each draft length is measured in a process of its own. `--dry-run` takes the tiny models of this repository on the CPU;
its figures mean nothing. See `bench/gpu/README.md`.
"""

import argparse
import json
import subprocess
import sys
from pathlib import Path
from typing import Any

ROOT = Path(__file__).parents[2]
DRY = {
    "model": str(ROOT / "models" / "tiny-qwen"),
    "drafter": str(ROOT / "models" / "tiny-qwen-draft"),
    "method": "draft_model",
    "batches": [1, 4],
    "drafts": [0, 1],
    "tokens": 24,
    "engine": {"max_model_len": 256, "enforce_eager": True, "dtype": "float32"},
}


def main() -> None:
    """Measures every draft length and prints the table as a simulated pool's `economics` take it."""
    arguments = argparse.ArgumentParser(description=__doc__)
    arguments.add_argument("--plan", type=Path, help="JSON with the members of DRY; a full run needs one")
    arguments.add_argument("--dry-run", action="store_true", help="tiny models on the CPU")
    arguments.add_argument("--out", type=Path, help="write the results here as well")
    chosen = arguments.parse_args()
    if not chosen.dry_run and chosen.plan is None:
        arguments.error("give --plan or --dry-run")
    plan: dict[str, Any] = DRY if chosen.dry_run else json.loads(chosen.plan.read_text())
    runs = [_measured(plan, drafts) for drafts in plan["drafts"]]
    result = {
        "economics": {
            "step_times": {
                "drafts": plan["drafts"],
                "batches": plan["batches"],
                "step_ms": [run["step_ms"] for run in runs],
            }
        },
        "opt_out": {str(run["drafts"]): run["opt_out"] for run in runs if run["drafts"]},
        "engine": runs[0]["engine"],
    }
    text = json.dumps(result, indent=1)
    print(text)
    if chosen.out is not None:
        chosen.out.write_text(text + "\n")


def _measured(plan: dict[str, Any], drafts: int) -> dict[str, Any]:
    """Measures one draft length in a process of its own, which takes the engine's memory with it."""
    command = [sys.executable, "-m", "bench.gpu.engine_run"]
    process = subprocess.run(
        command, input=json.dumps({**plan, "drafts": drafts}), stdout=subprocess.PIPE, text=True, check=True, cwd=ROOT
    )
    found: dict[str, Any] = json.loads(process.stdout.splitlines()[-1])
    return found


if __name__ == "__main__":
    main()
