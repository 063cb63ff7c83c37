"""Tokens per step by pool and request class, learned from answers: decayed counts that begin with a prior. Pure."""

from dataclasses import dataclass

# A prior counts as much as this many steps; an answer of 300 tokens takes about 100.
_PRIOR_STEPS = 500.0
# After this many answers, the weight of an earlier one is halved.
_HALF_LIFE_ANSWERS = 100
_KEPT_PER_ANSWER = 0.5 ** (1 / _HALF_LIFE_ANSWERS)
_ALARM_ANSWERS = 50
_ALARM_SHARE = 0.5


@dataclass(slots=True)
class Acceptance:
    """The drafted tokens that one kind of request accepts in one pool.

    Attributes:
        prior: Tokens per step before anything is known.
        answers: Answers that were counted.
        length: Tokens per step, as known now.
        tokens: Mean tokens of an answer, as known now.
    """

    prior: float
    answers: int = 0
    length: float = 0.0
    tokens: float = 300.0
    _steps: float = 0.0
    _accepted: float = 0.0

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
        self.answers += 1
        self._steps = self._steps * _KEPT_PER_ANSWER + steps
        self._accepted = self._accepted * _KEPT_PER_ANSWER + accepted
        prior_steps = _PRIOR_STEPS * _KEPT_PER_ANSWER**self.answers
        drafted = (self.prior - 1.0) * prior_steps + self._accepted
        self.length = 1.0 + drafted / (prior_steps + self._steps)
        self.tokens += (steps + accepted - self.tokens) * (1.0 - _KEPT_PER_ANSWER)

    @property
    def collapsed(self) -> bool:
        """True if drafts are accepted less than half as often as expected, over enough answers to be sure."""
        return self.answers >= _ALARM_ANSWERS and self.length - 1.0 < _ALARM_SHARE * (self.prior - 1.0)
