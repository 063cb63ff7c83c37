"""Tokens per step by pool and request class, learned from answers: decayed counts that begin with a prior. Pure."""

from dataclasses import dataclass

# A prior counts as much as this many steps; an answer of 300 tokens takes about 100.
_PRIOR_STEPS = 500.0
# After this many answers, the weight of an earlier one is halved.
_HALF_LIFE_ANSWERS = 100
_KEPT_PER_ANSWER = 0.5 ** (1 / _HALF_LIFE_ANSWERS)
_ALARM_ANSWERS = 50
_ALARM_SHARE = 0.5

AcceptanceTotals = tuple[int, float, float]  # answers, decayed steps, decayed accepted tokens
NOTHING: AcceptanceTotals = (0, 0.0, 0.0)


@dataclass(slots=True)
class Acceptance:
    """The drafted tokens that one kind of request accepts in one pool.

    Attributes:
        prior: Tokens per step before anything is known.
        answers: Answers that were counted, by this gateway replica and by others.
        length: Tokens per step, as known now.
        tokens: Mean tokens of an answer, as known now.
    """

    prior: float
    answers: int = 0
    length: float = 0.0
    tokens: float = 300.0
    _own: AcceptanceTotals = NOTHING
    _others: AcceptanceTotals = NOTHING

    def __post_init__(self) -> None:
        self.length = self.prior

    def learn(self, steps: int, accepted: int) -> None:
        """Counts one answer.

        Args:
            steps: Its speculative steps; an answer without any says nothing.
            accepted: Drafted tokens that were accepted in them.
        """
        if steps <= 0 or accepted < 0:
            return
        answers, all_steps, all_accepted = self._own
        self._own = (
            answers + 1,
            all_steps * _KEPT_PER_ANSWER + steps,
            all_accepted * _KEPT_PER_ANSWER + accepted,
        )
        self.tokens += (steps + accepted - self.tokens) * (1.0 - _KEPT_PER_ANSWER)
        self._fit()

    def hear(self, others: AcceptanceTotals) -> None:
        """Takes what all other gateway replicas have counted, in place of what they had before."""
        self._others = others
        self._fit()

    @property
    def totals(self) -> AcceptanceTotals:
        """What this replica has counted, for others."""
        return self._own

    @property
    def collapsed(self) -> bool:
        """True if drafts are accepted less than half as often as expected, over enough answers to be sure."""
        return self.answers >= _ALARM_ANSWERS and self.length - 1.0 < _ALARM_SHARE * (self.prior - 1.0)

    def _fit(self) -> None:
        answers, steps, accepted = (mine + theirs for mine, theirs in zip(self._own, self._others, strict=True))
        self.answers = int(answers)
        prior_steps = _PRIOR_STEPS * _KEPT_PER_ANSWER**answers
        self.length = 1.0 + ((self.prior - 1.0) * prior_steps + accepted) / (prior_steps + steps)
