"""One answer of the simulated engine, from the request to its deltas step by step, without clock or I/O."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping
from random import Random
from typing import Any

from lab.sim import faults
from lab.sim.answer import acceptance_class, answer_to, calls_before, opted_out, random_of, thinks
from lab.sim.deltas import Delta, DeltaParser, LeakingParser, OwnParser, PassingParser
from lab.sim.formats import FORMATS
from lab.sim.segments import segments_of
from lab.sim.settings import SimSettings
from lab.sim.steps import Speculation, steps_of, tokens_of


class Generation:
    """A deterministic answer to one request.

    Attributes:
        fault: Name of the injected fault, or None.
        transport: The fault's effect on the connection, or None.
        finish_reason: OpenAI's finish reason.
        speculation: Statistics of the drafts.
    """

    def __init__(self, body: Mapping[str, Any], settings: SimSettings, choice: int = 0) -> None:
        rng = random_of(body, settings.seed, choice)
        answer = answer_to(body, settings, rng)
        self._settings = settings
        self._speculative = settings.num_speculative_tokens > 0 and not opted_out(body)
        self.speculation = Speculation(settings.num_speculative_tokens if self._speculative else 0)
        fault_rng = random_of(body, "fault", settings.fault_seed, choice)
        self.fault = faults.draw(dict(settings.faults), answer.kind, speculative=not opted_out(body), rng=fault_rng)
        fault = faults.FAULTS[self.fault] if self.fault else None
        self.transport = fault.transport if fault else None
        segments = segments_of(answer, settings.grammar, first_call=calls_before(body))
        if fault and fault.edit:
            segments = fault.edit(segments, settings.grammar, fault_rng)
        tokens = tokens_of(segments, FORMATS[settings.grammar].special, handed_on=settings.parser == "passing")
        limit = body.get("max_completion_tokens") or body.get("max_tokens") or len(tokens)
        self._cut = limit < len(tokens)
        self._tokens = tokens[:limit]
        self._parser = PARSERS[settings.parser](body, settings, rng)
        self._named = isinstance(body.get("tool_choice"), Mapping)
        acceptance = settings.acceptance_of(acceptance_class(body, settings))
        self._steps = list(steps_of(self._tokens, self.speculation, acceptance, rng))

    @property
    def completion_tokens(self) -> int:
        return len(self._tokens)

    def tokens_of(self, step: int) -> int:
        """Returns how many tokens a step writes; none after the last one."""
        return len(self._steps[step]) if step < len(self._steps) else 0

    @property
    def reasoning_tokens(self) -> int:
        return sum(token.segment.part in ("think_begin", "reasoning", "think_end") for token in self._tokens)

    @property
    def finish_reason(self) -> str:
        if self._cut:
            return "length"
        return "tool_calls" if self._parser.calls and not self._named else "stop"

    def deltas(self) -> Iterator[Delta]:
        """Yield a delta for each step, which may be empty, and at the end what the parser held back."""
        for step in self._steps:
            yield self._parser.feed(step)
        yield self._parser.finish(cut=self._cut)

    def metrics(self) -> dict[str, Any]:
        """Returns the extra field that vLLM adds with `--per-request-spec-decode-metrics summary`."""
        if not (self._settings.spec_metrics and self._settings.num_speculative_tokens):
            return {}
        summary = self.speculation.summary() | {"num_spec_tokens": self._settings.num_speculative_tokens}
        return {"metrics": {"speculative_decoding": summary}}


def _reports(body: Mapping[str, Any]) -> bool:
    return bool((body.get("vllm_xargs") or {}).get("specgate_violations"))


PARSERS: dict[str, Callable[[Mapping[str, Any], SimSettings, Random], DeltaParser]] = {
    "passing": lambda body, settings, rng: PassingParser(settings.grammar, rng),
    "specgate": lambda body, settings, rng: OwnParser(
        settings.grammar,
        body.get("tools") or (),
        thinking=thinks(body, settings) and not FORMATS[settings.grammar].think_begin,  # else the model opens it itself
        reports=_reports(body),
    ),
    "leaking": lambda body, settings, rng: LeakingParser(),
}
