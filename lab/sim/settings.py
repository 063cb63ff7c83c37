"""Settings of a simulated engine: its model, speed, acceptance profile and fault rates."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from typing import Any, Literal, get_args

from lab.sim.economics import Economics
from lab.sim.faults import FAULTS
from lab.sim.formats import FORMATS
from serve.config.pool import NO_GRAMMAR
from serve.errors import ConfigError

ParserName = Literal["passing", "specgate", "leaking"]
Acceptance = tuple[float, ...] | Mapping[str, tuple[float, ...]]
ACCEPTANCE_CLASSES = frozenset({"tools", "json", "thinking", "prose"})


def grammar_given(grammar: str) -> dict[str, str]:
    """Returns a model's grammar as a setting; none if nobody knows it: what simulates the model then has its own."""
    return {} if grammar == NO_GRAMMAR else {"grammar": grammar}


@dataclass(frozen=True, kw_only=True)
class SimSettings:
    """Settings of one simulated engine.

    Attributes:
        model: Name of the model.
        grammar: Tool-call format of the model's text.
        thinking: Default for requests that do not switch thinking on or off.
        parser: Turns the model's text into OpenAI objects. `passing`: like vLLM's, passing on broken names and
            arguments. `specgate`: our own. `leaking`: none; all text is content.
        seed: Changes every answer.
        fault_seed: Changes which requests are affected by a fault.
        num_speculative_tokens: Draft length K; 0 for an engine without speculation.
        acceptance: Chance that draft position i is accepted if all before it were; the last value holds beyond. One
            profile, or one for each of `tools`, `json`, `thinking` and `prose`.
        prefill_ms: Time before the first step.
        step_ms: Time of one step, which emits 1..K+1 tokens.
        economics: Load-dependent costs in place of `prefill_ms` and `step_ms`; `{}` for the published ones.
        content_tokens: Minimum and maximum length of prose.
        call_rate: Share of `tool_choice: auto` requests that are answered with calls.
        max_calls: Maximum number of calls in one answer.
        max_num_seqs: Requests that run at a time; others wait.
        ready_after_s: Seconds after the start during which `/health` returns 503.
        stall_s: Duration of the faults `stall` and `slow_start`.
        faults: Rate per fault name; an answer has at most one fault, so rates add up to at most 1.
        slips: Share of identifiers that a drafting engine copies with one wrong character (see `asked_to_copy` in
            `lab/sim/answer.py`).
        spec_metrics: Add `metrics.speculative_decoding` to answers, as vLLM does.
    """

    model: str = "sim"
    grammar: str = "kimi_k2"
    thinking: bool = False
    parser: ParserName = "passing"
    seed: int = 0
    fault_seed: int = 0
    num_speculative_tokens: int = 0
    acceptance: Acceptance = (0.85, 0.75, 0.65)
    prefill_ms: float = 0.0
    step_ms: float = 0.0
    economics: Economics | None = None
    content_tokens: tuple[int, int] = (20, 60)
    call_rate: float = 1.0
    max_calls: int = 3
    max_num_seqs: int = 256
    ready_after_s: float = 0.0
    stall_s: float = 30.0
    faults: Mapping[str, float] = field(default_factory=dict)
    slips: float = 0.0
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
            "fault rates must be in 0..1 and add up to at most 1": (
                all(0 <= rate <= 1 for rate in self.faults.values()) and sum(self.faults.values()) <= 1 + 1e-9
            ),
            f"unknown grammar {self.grammar!r}": self.grammar in FORMATS,
            f"unknown parser {self.parser!r}": self.parser in get_args(ParserName),
            "num_speculative_tokens must not be negative": self.num_speculative_tokens >= 0,
            "acceptance needs at least one probability, all in 0..1": all(
                bool(profile) and all(0 <= chance <= 1 for chance in profile) for profile in self._profiles()
            ),
            f"acceptance by class needs each of {sorted(ACCEPTANCE_CLASSES)}": (
                not isinstance(self.acceptance, Mapping) or set(self.acceptance) == ACCEPTANCE_CLASSES
            ),
            "economics take the place of prefill_ms and step_ms": (
                self.economics is None or not (self.prefill_ms or self.step_ms)
            ),
            "content_tokens must be (minimum, maximum) with 1 <= minimum <= maximum": 1 <= low <= high,
            "call_rate and slips must be in 0..1": 0 <= self.call_rate <= 1 and 0 <= self.slips <= 1,
            "max_calls and max_num_seqs must be at least 1": min(self.max_calls, self.max_num_seqs) >= 1,
            "times must not be negative": min(self.prefill_ms, self.step_ms, self.ready_after_s, self.stall_s) >= 0,
        }
        return [problem for problem, holds in rules.items() if not holds]

    def acceptance_of(self, request_class: str) -> tuple[float, ...]:
        """Returns the acceptance profile of one of `ACCEPTANCE_CLASSES`."""
        return self.acceptance[request_class] if isinstance(self.acceptance, Mapping) else self.acceptance

    def _profiles(self) -> list[tuple[float, ...]]:
        return list(self.acceptance.values()) if isinstance(self.acceptance, Mapping) else [self.acceptance]

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> SimSettings:
        """Returns settings from a pool's `sim` mapping; lists become tuples.

        Raises:
            ConfigError: A setting is unknown or out of range.
        """
        names = {field.name for field in fields(cls)}
        if unknown := set(values) - names:
            raise ConfigError(f"simulated engine: unknown settings {sorted(unknown)}; known: {sorted(names)}")
        given: dict[str, Any] = {key: _tuples(value) for key, value in values.items()}
        if isinstance(values.get("economics"), Mapping):
            given["economics"] = Economics.from_mapping(values["economics"])
        return cls(**given)


def _tuples(value: Any) -> Any:
    """Returns lists as tuples, those in a mapping as well."""
    if isinstance(value, Mapping):
        return {key: _tuples(inner) for key, inner in value.items()}
    return tuple(value) if isinstance(value, list) else value
