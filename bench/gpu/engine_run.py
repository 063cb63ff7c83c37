"""One engine at one draft length: reads its plan from standard input, writes its figures into the file it is given.

They are written after each batch. vLLM logs to standard output, from several processes: it is no place for figures.
"""

import json
import math
import sys
import time
from collections import Counter
from collections.abc import Iterator
from pathlib import Path
from statistics import median
from typing import Any

REPEATS = 5
OPTED_OUT = (0.0, 0.01, 0.1, 0.5, 1.0)  # shares of the largest batch
GRAPHS = ("FULL", "PIECEWISE", "NONE")  # vLLM's kinds of CUDA graph
_DRAFTS = "vllm:spec_decode_num_drafts"
_DRAFT_TOKENS = "vllm:spec_decode_num_draft_tokens"


class EngineRun:
    """A vLLM engine within this process.

    Args:
        plan: As in `bench.gpu.__main__.DRY`, with one draft length.

    Attributes:
        async_scheduling: vLLM's choice.
    """

    def __init__(self, plan: dict[str, Any]) -> None:
        from vllm import EngineArgs  # only here: the parent needs no vLLM
        from vllm.v1.engine.llm_engine import LLMEngine

        from serve.engine.vllm import scheduler

        self._plan = plan
        self._drafts: int = plan["drafts"]
        settings: dict[str, Any] = {
            "max_num_seqs": max(plan["batches"]), "cudagraph_metrics": True, **plan["engine"],
        }  # fmt: skip
        if self._drafts:
            settings["speculative_config"] = {
                "method": plan["method"], "model": plan["drafter"], "num_speculative_tokens": self._drafts,
                **plan.get("speculative", {}),
            }  # fmt: skip
        config = EngineArgs(model=plan["model"], **settings).create_engine_config()
        if self._drafts:
            scheduler.install(config)
        self.async_scheduling = bool(config.scheduler_config.async_scheduling)
        self._graphs: Counter[str] = Counter()
        self._engine = LLMEngine.from_vllm_config(config, stat_loggers=[_graph_counter(self._graphs)])
        self.run(max(plan["batches"]), 0.0)  # graphs and kernels are made now

    def run(self, batch: int, opted_out: float) -> dict[str, float]:
        """Generates with a full batch; returns milliseconds a step, drafts, and the steps by kind of CUDA graph.

        Time and steps are those of the requests that speculate, if any does: the others take more steps and end later.

        Args:
            batch: Requests, all at a time.
            opted_out: Share of them without speculation, at least one request if above 0.
        """
        from vllm import SamplingParams

        without = math.ceil(batch * opted_out)
        tokens = self._plan["tokens"]
        self._graphs.clear()
        before = self._counters()
        for number in range(batch):
            parameters = SamplingParams(
                max_tokens=tokens, ignore_eos=True, temperature=0.0,
                extra_args={"enable_speculative": 0} if number < without else None,
            )  # fmt: skip
            self._engine.add_request(str(number), {"prompt_token_ids": [10 + number % 50] * 8}, parameters)
        ends_s = self._ends_s()
        drafts, draft_tokens = (now - then for now, then in zip(self._counters(), before, strict=True))
        timed = range(without if drafts else 0, batch)
        steps = drafts or tokens * batch
        step_s = sum(ends_s[str(number)] for number in timed) / steps
        graphs = {f"steps_{kind.lower()}": float(self._graphs[kind]) for kind in GRAPHS}
        return {"step_ms": step_s * 1e3, "drafts": drafts, "draft_tokens": draft_tokens, **graphs}

    def _ends_s(self) -> dict[str, float]:
        """Runs the engine until it is idle; returns after how many seconds each request ended."""
        ends_s = {}
        start_s = time.perf_counter()
        while self._engine.has_unfinished_requests():
            for output in self._engine.step():
                if output.finished:
                    ends_s[output.request_id] = time.perf_counter() - start_s
        return ends_s

    def _counters(self) -> tuple[float, float]:
        values = {metric.name: getattr(metric, "value", 0.0) for metric in self._engine.get_metrics()}
        return values.get(_DRAFTS, 0.0), values.get(_DRAFT_TOKENS, 0.0)

    def figures(self) -> Iterator[dict[str, Any]]:
        """Yields all that is known after each batch: step times, then what opt-outs do to the largest batch."""
        import vllm

        engine = {"vllm": vllm.__version__, "async_scheduling": self.async_scheduling}
        found: dict[str, Any] = {"engine": engine, "step_ms": [], "opt_out": []}
        for batch in self._plan["batches"]:
            found["step_ms"].append(round(self._median(batch, 0.0)["step_ms"], 4))
            yield found
        for share in OPTED_OUT if self._drafts else ():
            found["opt_out"].append(self._median(max(self._plan["batches"]), share) | {"share": share})
            yield found

    def _median(self, batch: int, opted_out: float) -> dict[str, float]:
        runs = [self.run(batch, opted_out) for _ in range(REPEATS)]
        return {name: round(median(run[name] for run in runs), 4) for name in runs[0]}


def _graph_counter(counts: Counter[str]) -> Any:
    """Returns what vLLM calls for an object that it gives its statistics to after each step."""
    from vllm.v1.metrics.loggers import StatLoggerBase

    class GraphCounter(StatLoggerBase):  # type: ignore[misc]  # vLLM's types are not followed
        def __init__(self, _config: Any, _engine: int = 0) -> None:
            pass

        def record(self, scheduler_stats: Any, *_: Any, **__: Any) -> None:
            if scheduler_stats is not None and scheduler_stats.cudagraph_stats is not None:
                counts[scheduler_stats.cudagraph_stats.runtime_mode] += 1

        def log_engine_initialized(self) -> None:
            pass

    return GraphCounter


if __name__ == "__main__":
    for figures in EngineRun(json.load(sys.stdin)).figures():
        Path(sys.argv[1]).write_text(json.dumps(figures))
