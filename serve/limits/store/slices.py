"""One cluster's slice of one meter: given in advance by the store, given out by the cluster's ledger.

A cluster is to the store what a gateway replica is to its ledger, so these are the replicas' slices, a size up.
"""

from serve.limits.messages import Ask, Holding
from serve.limits.slice import RateSlice, SeatSlice

IDLE_S = 120.0  # after which a slice that nobody uses is forgotten
_RESERVED = 0.25  # of an equal part, kept for that long: else a cluster far from the store would wait again and again


class RateAdvance(RateSlice):
    """A cluster's slice of a rate."""

    @property
    def _reserve(self) -> float:
        return _RESERVED * self.terms.capacity / self._replicas

    def spend(self, amount: float, now_s: float) -> None:
        """Spends an amount, whether it is there or not."""
        self.held -= amount
        self._spent += amount
        self.used_s = now_s

    def give(self, amount: float) -> None:
        """Takes back what a replica did not use."""
        self.held += amount
        self._spent = max(0.0, self._spent - amount)

    def ask(self, amount: float) -> Ask:
        """Returns what the store must give before an amount may be taken."""
        asked = super().ask(amount)
        return asked._replace(wanted=max(asked.wanted, self._reserve))

    def urgent(self, ask: Ask) -> Holding:
        """Returns what the store should know with what is needed at once."""
        return Holding(self.terms, self.held, wanted=ask.wanted, demand_per_s=self._demand_per_s)

    def report(self, now_s: float, *, last: bool = False) -> Holding:
        """Returns what the store should know; what is no longer needed is given back with it."""
        holding = super().report(now_s, last=last)
        if self.alone or now_s - self.used_s > IDLE_S:
            return holding
        missing = max(0.0, self._reserve - self.held)
        kept = min(holding.returned, missing)
        self.held += kept
        wanted = max(holding.wanted, missing - kept)
        return holding._replace(held=self.held, returned=holding.returned - kept, wanted=wanted)


class SeatAdvance(SeatSlice):
    """A cluster's seats of a concurrency."""

    @property
    def _reserve(self) -> float:
        return float(int(_RESERVED * self.terms.capacity / self._replicas))

    def use(self, out: float, now_s: float) -> float:
        """Notes how many seats the replicas have; returns how many are free."""
        self.held = max(0.0, self.held + self.in_use - out)
        if out != self.in_use:
            self.used_s = now_s
        self.in_use = out
        self._most = max(self._most, out)
        return self.held

    def ask(self, amount: float) -> Ask:
        """Returns what the store must give before so many seats may be taken."""
        return super().ask(amount)._replace(wanted=self._reserve)

    def urgent(self, ask: Ask) -> Holding:
        """Returns what the store should know with what is needed at once."""
        return Holding(self.terms, self.held + self.in_use, wanted=ask.wanted)

    def report(self, now_s: float, *, last: bool = False) -> Holding:
        """Gives back the seats that nobody has used for two reports, but for a few."""
        least = self._reserve if not self.alone and now_s - self.used_s < IDLE_S else 0.0
        self._keep(self.in_use + least)
        return Holding(self.terms, self.held + self.in_use, wanted=max(0.0, least - self.held), level=self.level)
