"""The budget of the echo canary's requests to one pool, and their times. Pure: time is passed in."""

from __future__ import annotations

from dataclasses import dataclass

from serve.config.quarantine import EchoConfig

_MOST_AT_ONCE = 400  # requests: enough for a finding


@dataclass
class EchoBudget:
    """Tokens, in one gateway replica: a share of those of answers, and a few with each round.

    What the first requests to a build take beyond that is owed, and later rounds wait until it is paid. So the canary
    takes at most `share` of the tokens of answers, `least` requests a round, and one debt.

    Attributes:
        gateways: Replicas among which `least` is divided.
        credit: Tokens that may be taken; below 0 they are owed.
    """

    terms: EchoConfig
    gateways: int
    due_s: float
    credit: float = 0.0
    cost: float = 1000.0
    _answered: float = 0.0

    def due(self, now_s: float, answered: float) -> int:
        """Returns how many requests are due; none between rounds. `answered` counts the tokens of all answers of the
        pool so far.
        """
        if now_s < self.due_s:
            return 0
        self.due_s = now_s + self.terms.every_s
        self.credit += self.terms.share * (answered - self._answered) + self.cost * self.terms.least / self.gateways
        self._answered = answered
        self.credit = min(self.credit, _MOST_AT_ONCE * self.cost)
        return max(0, int(self.credit / self.cost))

    def spend(self, tokens: int) -> None:
        """Takes what a request has used."""
        self.credit -= tokens
        self.cost += 0.1 * (tokens - self.cost)
