"""One engine at one draft length: reads its plan from standard input, prints its figures as the last line."""

import json
import sys
import time
from statistics import median
from typing import Any

REPEATS = 5
OPTED_OUT = (0.0, 0.1, 0.5, 1.0)  # shares of the largest batch
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"


class EngineRun:
    """A vLLM engine within this process.

    Args:
        plan: As in `bench.gpu.__main__.DRY`, with one draft length.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        from vllm import LLM  # only here: the parent needs no vLLM

        self._plan = plan
        self._drafts: int = plan["drafts"]
        settings: dict[str, Any] = {"disable_log_stats": False, "max_num_seqs": max(plan["batches"]), **plan["engine"]}
        if self._drafts:
            settings["speculative_config"] = {
                "method": plan["method"], "model": plan["drafter"], "num_speculative_tokens": self._drafts,
                **plan.get("speculative", {}),
            }  # fmt: skip
            kind = "OptOutScheduler" if plan["engine"].get("async_scheduling") is False else "OptOutAsyncScheduler"
            settings["scheduler_cls"] = f"serve.engine.vllm.scheduler.{plan.get('scheduler', kind)}"
        self._llm = LLM(model=plan["model"], **settings)
        self.run(max(plan["batches"]), 0.0)  # graphs and kernels are made now

    def run(self, batch: int, opted_out: float) -> dict[str, float]:
        """Generates with a full batch; returns milliseconds a step, and drafts.

        Args:
            batch: Requests, all at a time.
            opted_out: Share of them without speculation.
        """
        from vllm import SamplingParams

        without = round(batch * opted_out)
        tokens = self._plan["tokens"]
        parameters = [
            SamplingParams(
                max_tokens=tokens, ignore_eos=True, temperature=0.0,
                extra_args={"enable_speculative": 0} if number < without else None,
            )
            for number in range(batch)
        ]  # fmt: skip
        prompts = [{"prompt_token_ids": [10 + number % 50] * 8} for number in range(batch)]
        before = self._counters()
        start = time.perf_counter()
        self._llm.generate(prompts, parameters, use_tqdm=False)
        elapsed_s = time.perf_counter() - start
        drafts, draft_tokens = (now - then for now, then in zip(self._counters(), before, strict=True))
        speculating = batch - without
        steps = drafts / speculating if drafts and speculating else tokens
        return {"step_ms": elapsed_s / max(steps, 1.0) * 1e3, "drafts": drafts, "draft_tokens": draft_tokens}

    def _counters(self) -> tuple[float, float]:
        values = {metric.name: getattr(metric, "value", 0.0) for metric in self._llm.get_metrics()}
        return values.get(_DRAFTS, 0.0), values.get(_DRAFT_TOKENS, 0.0)

    def figures(self) -> dict[str, Any]:
        """Returns the step times by batch, and what opt-outs do to the largest one."""
        import vllm

        largest = max(self._plan["batches"])
        opt_out = [self._median(largest, share) | {"share": share} for share in OPTED_OUT] if self._drafts else []
        return {
            "drafts": self._drafts,
            "step_ms": [round(self._median(batch, 0.0)["step_ms"], 4) for batch in self._plan["batches"]],
            "opt_out": opt_out,
            "engine": f"vllm {vllm.__version__}",
        }

    def _median(self, batch: int, opted_out: float) -> dict[str, float]:
        runs = [self.run(batch, opted_out) for _ in range(REPEATS)]
        return {name: round(median(run[name] for run in runs), 4) for name in runs[0]}


if __name__ == "__main__":
    print(json.dumps(EngineRun(json.load(sys.stdin)).figures()))
