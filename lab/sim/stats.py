"""Counters of a simulated engine: requests by state, faults, drafts; benchmarks check against them."""

from __future__ import annotations

from collections import Counter
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Any

from lab.sim.kv_cache import KvCache
from lab.sim.steps import Speculation


class SimStats:
    """Counters of one engine.

    Args:
        kv: Its KV memory, if that is simulated.
        drafts: It speculates; without that vLLM has no counters of drafts, by which an engine is known.
    """

    def __init__(self, kv: KvCache | None = None, *, drafts: bool = True) -> None:
        self._kv = kv
        self._has_drafter = drafts
        self.states: Counter[str] = Counter(
            dict.fromkeys(("waiting", "running", "started", "finished", "cancelled"), 0)
        )
        self.faults: Counter[str] = Counter()
        self._drafts = 0
        self._drafted = 0
        self._accepted = 0
        self._prompt_tokens = 0
        self._tokens = 0

    @contextmanager
    def during(self, state: str) -> Iterator[None]:
        """Count one request in the given state while the context lasts."""
        self.states[state] += 1
        try:
            yield
        finally:
            self.states[state] -= 1

    def add_prompt(self, tokens: int) -> None:
        """Counts a prompt that was computed."""
        self._prompt_tokens += tokens

    def add_tokens(self, tokens: int) -> None:
        """Counts what was written, whether anybody reads it or not."""
        self._tokens += tokens

    def add_speculation(self, speculation: Speculation) -> None:
        self._drafts += speculation.steps if speculation.drafts else 0
        self._drafted += speculation.steps * speculation.drafts
        self._accepted += speculation.accepted

    def as_dict(self) -> dict[str, Any]:
        tokens = {"prompt_tokens": self._prompt_tokens, "generation_tokens": self._tokens}
        return {**self.states, "faults": dict(self.faults), **tokens}

    def exposition(self, model: str) -> str:
        """Returns the counters under vLLM's names, as Prometheus text."""
        values: dict[tuple[str, str], float] = {
            ("num_requests_running", "gauge"): self.states["running"],
            ("num_requests_waiting", "gauge"): self.states["waiting"],
            ("prompt_tokens_total", "counter"): self._prompt_tokens,
            ("generation_tokens_total", "counter"): self._tokens,
            ("num_preemptions_total", "counter"): self._kv.preempted if self._kv is not None else 0,
        }
        if self._has_drafter:
            values |= {
                ("spec_decode_num_drafts_total", "counter"): self._drafts,
                ("spec_decode_num_draft_tokens_total", "counter"): self._drafted,
                ("spec_decode_num_accepted_tokens_total", "counter"): self._accepted,
            }
        if self._kv is not None:
            values |= {
                ("kv_cache_usage_perc", "gauge"): round(min(1.0, self._kv.held / self._kv.tokens), 6),
                ("prefix_cache_queries_total", "counter"): self._kv.queried,
                ("prefix_cache_hits_total", "counter"): self._kv.hits,
            }
        lines = []
        for (name, kind), value in values.items():
            lines.append(f"# TYPE vllm:{name} {kind}")
            lines.append(f'vllm:{name}{{model_name="{model}"}} {value}')
        return "\n".join(lines) + "\n"
