"""Tokens per step by pool and request class: what drafters reach as a rule, and what answers show. Pure."""

from dataclasses import dataclass
from functools import lru_cache

from policies.classes import BIT, GROUPS

# A prior counts as much as this many steps; an answer of 300 tokens takes about 100.
_PRIOR_STEPS = 500.0
# After this many answers, the weight of an earlier one is halved.
_HALF_LIFE_ANSWERS = 100
_KEPT_PER_ANSWER = 0.5 ** (1 / _HALF_LIFE_ANSWERS)
# Where answers are few, what is known fades with time, but never below about ten answers.
_STEPS_PER_ANSWER = 100.0
_LEAST_STEPS = 10 * _STEPS_PER_ANSWER
# One answer counts no more than this many: neither a very long one nor what an engine makes up outweighs all others.
_MOST_STEPS = 4096.0
_MOST_DRAFTS = 32
_ALARM_ANSWERS = 50
_ALARM_SHARE = 0.5

# Chance that a drafted token is accepted, from the card of Kimi-K2.5-eagle3 at K = 3: BFCL (3.7 tokens per step),
# HumanEval (3.3), MTBench (2.7); thinking from InferenceX's golden lengths with thinking on (2.9).
_ACCEPTED_TOOLS = 0.95
_ACCEPTED_JSON = 0.87
_ACCEPTED_THINKING = 0.78
_ACCEPTED_PROSE = 0.74
_TOOLS = sum(BIT[name] for name in GROUPS["tools"])
_FORMS = sum(BIT[name] for name in (*GROUPS["json"], "structured"))

AcceptanceTotals = tuple[int, float, float]  # answers, decayed steps, decayed accepted tokens
NOTHING: AcceptanceTotals = (0, 0.0, 0.0)


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


@dataclass(slots=True)
class Acceptance:
    """The drafted tokens that one kind of request accepts in one pool.

    Attributes:
        prior: Tokens per step before anything is known.
        drafts: Tokens drafted in a step at most; an answer that claims to have accepted more is not believed.
        answers: Answers that were counted, by this gateway replica and by others.
        length: Tokens per step, as known now.
        measured: Most of that comes from answers, and not from the prior.
        shown: Tokens per step in answers alone; None before the first.
        idle_s: Seconds since this gateway replica learned of an answer; None before the first.
    """

    prior: float
    drafts: int = _MOST_DRAFTS
    answers: int = 0
    length: float = 0.0
    measured: bool = False
    shown: float | None = None
    idle_s: float | None = None
    _fresh: float = 0.0  # own answers, those counted less that have lost weight
    _own: AcceptanceTotals = NOTHING
    _others: AcceptanceTotals = NOTHING

    def __post_init__(self) -> None:
        self.length = self.prior

    def learn(self, steps: int, accepted: int) -> None:
        """Counts one answer by its speculative steps, without which it says nothing, and the drafted tokens that were
        accepted in them.
        """
        if steps <= 0 or not 0 <= accepted <= steps * self.drafts:
            return
        weight = min(1.0, _MOST_STEPS / steps)
        answers, all_steps, all_accepted = self._own
        self._fresh = self._fresh * _KEPT_PER_ANSWER + 1.0
        self._own = (
            answers + 1,
            all_steps * _KEPT_PER_ANSWER + steps * weight,
            all_accepted * _KEPT_PER_ANSWER + accepted * weight,
        )
        self.idle_s = 0.0
        self._fit()

    def expect(self, prior: float, drafts: int) -> None:
        """Takes what another draft length leads to expect; what answers showed stays until others outweigh it."""
        self.prior, self.drafts = prior, drafts
        self._fit()

    def fade(self, kept: float, elapsed_s: float = 0.0) -> None:
        """Keeps a share of the weight of what is known after some time, so that few answers suffice to correct it."""
        if self.idle_s is not None:
            self.idle_s += elapsed_s
        answers, steps, accepted = self._own
        if steps > _LEAST_STEPS:
            kept = max(kept, _LEAST_STEPS / steps)
            self._own = (answers, steps * kept, accepted * kept)
            self._fresh *= kept

    def merge(self, others: AcceptanceTotals) -> None:
        """Takes what all other gateway replicas have counted, in place of what they had before."""
        self._others = others
        self._fit()

    @property
    def totals(self) -> AcceptanceTotals:
        """Returns what this replica has counted, for others."""
        return self._own

    @property
    def weight(self) -> float:
        """The number of answers that are as sure as what is known; those of other replicas are taken to be as long."""
        own, (answers, steps, _) = self._own[1], self._others
        return self._fresh * (1.0 + steps / own) if own else min(answers, steps / _STEPS_PER_ANSWER)

    @property
    def collapsed(self) -> bool:
        """True if drafts are accepted less than half as often as expected, over enough answers to be sure."""
        return self.answers >= _ALARM_ANSWERS and self.length - 1.0 < _ALARM_SHARE * (self.prior - 1.0)

    def _fit(self) -> None:
        answers, steps, accepted = (mine + theirs for mine, theirs in zip(self._own, self._others, strict=True))
        self.answers = int(answers)
        prior_steps = _PRIOR_STEPS * _KEPT_PER_ANSWER**answers
        self.measured = steps >= prior_steps
        self.shown = 1.0 + accepted / steps if steps else None
        self.length = 1.0 + ((self.prior - 1.0) * prior_steps + accepted) / (prior_steps + steps)


@dataclass(slots=True)
class AnswerLength:
    """The tokens of the answers to one kind of request, whichever pool they come from.

    Attributes:
        tokens: Their mean, later ones counting more.
    """

    answers: int = 0
    tokens: float = 300.0

    def learn(self, tokens: int) -> None:
        """Counts one answer of so many tokens."""
        self.answers += 1
        self.tokens += (min(tokens, _MOST_STEPS) - self.tokens) * (1.0 - _KEPT_PER_ANSWER)
