"""What a simulated engine is: its model, speed, acceptance profile and fault rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from serve.engine.sim.faults import FAULTS
from serve.errors import ConfigError

GrammarName = Literal["kimi_k2", "qwen3_coder", "hermes"]
ParserName = Literal["passing", "specgate", "leaking"]


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """Settings of one simulated engine.

    Attributes:
        model: Name under which it answers.
        grammar: Tool-call format of the model's text.
        thinking: Whether the model thinks when the request does not say.
        parser: How the model's text becomes OpenAI objects. `passing`: as vLLM's parsers, which
            hand on broken names and arguments as they are. `specgate`: our own. `leaking`: none, markers and all arrive
            as content.
        seed: Changes every answer.
        fault_seed: Changes which requests meet a fault.
        num_speculative_tokens: Draft length K; 0 is an engine without speculation.
        acceptance: Chance that draft position i is accepted when all before it were; the last one holds further on.
        prefill_ms: Time before the first step.
        step_ms: Time of one step, which emits 1..K+1 tokens.
        content_tokens: Length of prose, at least and at most.
        call_rate: Share of `tool_choice: auto` requests that are answered with calls.
        max_calls: Most calls in one answer.
        max_num_seqs: Requests that run at a time; others wait.
        ready_after_s: Seconds after the start during which `/health` says 503.
        stall_s: How long the faults `stall` and `slow_start` last.
        faults: Rate per fault name; at most one fault an answer, so the rates add up to at most 1.
        spec_metrics: Whether answers carry `metrics.speculative_decoding`, as vLLM's do with per-request metrics on.
    """

    model: str = "sim"
    grammar: GrammarName = "kimi_k2"
    thinking: bool = False
    parser: ParserName = "passing"
    seed: int = 0
    fault_seed: int = 0
    num_speculative_tokens: int = 0
    acceptance: tuple[float, ...] = (0.85, 0.75, 0.65)
    prefill_ms: float = 0.0
    step_ms: float = 0.0
    content_tokens: tuple[int, int] = (20, 60)
    call_rate: float = 1.0
    max_calls: int = 3
    max_num_seqs: int = 256
    ready_after_s: float = 0.0
    stall_s: float = 30.0
    faults: Mapping[str, float] = field(default_factory=dict)
    spec_metrics: bool = True

    def __post_init__(self) -> None:
        for problem in self._problems():
            raise ConfigError(f"simulated engine: {problem}")

    def _problems(self) -> list[str]:
        low, high = self.content_tokens
        rules = {
            f"unknown faults {sorted(set(self.faults) - set(FAULTS))}; known: {sorted(FAULTS)}": (
                set(self.faults) <= set(FAULTS)
            ),
            "fault rates lie in 0..1 and add up to at most 1": (
                all(0 <= rate <= 1 for rate in self.faults.values()) and sum(self.faults.values()) <= 1 + 1e-9
            ),
            f"unknown grammar {self.grammar!r}": self.grammar in get_args(GrammarName),
            f"unknown parser {self.parser!r}": self.parser in get_args(ParserName),
            "num_speculative_tokens is not negative": self.num_speculative_tokens >= 0,
            "acceptance holds at least one chance in 0..1": (
                bool(self.acceptance) and all(0 <= chance <= 1 for chance in self.acceptance)
            ),
            "content_tokens is (least, most) with 1 <= least <= most": 1 <= low <= high,
            "call_rate lies in 0..1": 0 <= self.call_rate <= 1,
            "max_calls and max_num_seqs are at least 1": min(self.max_calls, self.max_num_seqs) >= 1,
            "times are not negative": min(self.prefill_ms, self.step_ms, self.ready_after_s, self.stall_s) >= 0,
        }
        return [problem for problem, holds in rules.items() if not holds]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SimSettings:
        """Settings from a pool's `sim` mapping; lists become tuples."""
        known = {each.name for each in fields(cls)}
        if unknown := set(values) - known:
            raise ConfigError(f"simulated engine: unknown settings {sorted(unknown)}; known: {sorted(known)}")
        given: dict[str, Any] = {
            key: tuple(value) if isinstance(value, list) else value for key, value in values.items()
        }
        return cls(**given)
