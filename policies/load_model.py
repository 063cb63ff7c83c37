"""The cost and gain of a request on a pool: step times by batch and draft length, and tokens per step. Pure."""

from bisect import bisect_right
from collections.abc import Sequence
from dataclasses import dataclass
from functools import lru_cache

from policies.classes import BIT, GROUPS


@dataclass(frozen=True, slots=True)
class StepTimes:
    """The time of one engine step, measured at some draft lengths and batch sizes; linear between them and beyond.

    Attributes:
        drafts: Draft lengths, ascending from 0.
        batches: Sequences in the batch, ascending; at least two.
        step_s: Seconds, a row for each draft length and a column for each batch.
    """

    drafts: tuple[int, ...]
    batches: tuple[int, ...]
    step_s: tuple[tuple[float, ...], ...]

    def at(self, batch: float, drafts: int) -> float:
        """Returns the seconds of one step. A batch of less than one sequence counts as one."""
        batch = max(batch, 1.0)
        row, between = _place(self.drafts, drafts)
        low = self._row(row, batch)
        return low if not between else low + between * (self._row(row + 1, batch) - low)

    def _row(self, row: int, batch: float) -> float:
        times = self.step_s[row]
        column, between = _place(self.batches, batch)
        return times[column] + between * (times[column + 1] - times[column])


def _place(values: Sequence[int], value: float) -> tuple[int, float]:
    """Returns the value's place among ascending ones, as an index and a fraction; beyond the last one it exceeds 1."""
    index = min(max(bisect_right(values, value) - 1, 0), len(values) - 2)
    return index, (value - values[index]) / (values[index + 1] - values[index])


# vllm#32374: inter-token latency of Llama-3.1-8B with EAGLE, K = 0, 1, 3, 5. A dense model; mixture-of-experts pays
# more for verification. A default for its shape: how batch and draft length trade against each other.
PUBLISHED = StepTimes(
    drafts=(0, 1, 3, 5),
    batches=(1, 4, 16, 64, 256),
    step_s=(
        (0.00652, 0.00660, 0.00690, 0.00777, 0.01449),
        (0.00737, 0.00747, 0.00785, 0.00966, 0.02714),
        (0.00884, 0.00898, 0.00952, 0.01350, 0.04185),
        (0.01033, 0.01040, 0.01120, 0.01683, 0.05740),
    ),
)

# Tokens that one engine prefills in a second. Assumed, not published: only its order of magnitude matters here.
PREFILL_TOKENS_PER_S = 20_000.0

# Chance that a drafted token is accepted, from the card of Kimi-K2.5-eagle3 at K = 3: BFCL (3.7 tokens per step),
# HumanEval (3.3), MTBench (2.7); thinking from InferenceX's golden lengths with thinking on (2.9).
_ACCEPTED_TOOLS = 0.95
_ACCEPTED_JSON = 0.87
_ACCEPTED_THINKING = 0.78
_ACCEPTED_PROSE = 0.74
_TOOLS = sum(BIT[name] for name in GROUPS["tools"])
_FORMS = sum(BIT[name] for name in (*GROUPS["json"], "structured"))


@lru_cache(maxsize=4096)
def prior_length(mask: int, drafts: int) -> float:
    """Returns the tokens per step that drafters of this kind reach on such requests. A draft length of 0 is no
    speculation.
    """
    if mask & BIT["thinking"]:
        accepted = _ACCEPTED_THINKING  # most of the answer is reasoning
    elif mask & _TOOLS:
        accepted = _ACCEPTED_TOOLS
    elif mask & _FORMS:
        accepted = _ACCEPTED_JSON
    else:
        accepted = _ACCEPTED_PROSE
    return sum(accepted**place for place in range(drafts + 1))
