"""All that one gateway replica holds of the ledger's, and its side of the protocol. No I/O."""

from collections.abc import Mapping
from dataclasses import replace

from serve.limits.messages import Ask, Holding, Meter, Reply, Report, Spending, Terms, UsageKey, UsageSums
from serve.limits.slice import RateSlice, SeatSlice, Slice

_IDLE_S = 120.0  # after which a slice that nobody uses is forgotten


class Holdings:
    """The slices of one replica.

    Args:
        replica: A name that no other replica ever has.
        replicas: How many there are.
        now_s: Monotonic.

    Attributes:
        alone: The ledger does not answer, or has just begun.
        answered_s: When a ledger last granted something; None if none ever did.
        forgotten: Slices that were dropped so far; whoever keeps slices must get new ones when it changes.
    """

    def __init__(self, replica: str, replicas: int, now_s: float) -> None:
        self.replica = replica
        self.alone = False
        self.answered_s: float | None = None
        self.forgotten = 0
        self._replicas = replicas
        self._slices: dict[Meter, Slice] = {}
        self._seen = 0
        self._number = 0
        self._unconfirmed: Report | None = None

    def slice(self, meter: Meter, terms: Terms, now_s: float) -> Slice:
        """Returns the slice of a meter, under the terms as they are now."""
        found = self._slices.get(meter)
        if found is None:
            kind = SeatSlice if meter.kind == "concurrency" else RateSlice
            found = self._slices[meter] = kind(meter, terms, self._replicas, now_s)
            if self.alone:
                found.draw(now_s)
        found.terms = terms
        return found

    def in_use(self, meter: Meter) -> float:
        """Returns the seats of requests under way; 0 for a meter that has none."""
        held = self._slices.get(meter)
        return held.in_use if isinstance(held, SeatSlice) else 0.0

    def report(
        self,
        now_s: float,
        usage: Mapping[UsageKey, UsageSums],
        spent: tuple[Spending, ...] = (),
        quotas: tuple[str, ...] = (),
        *,
        last: bool = False,
    ) -> Report:
        """Returns the next report. The one before must have been answered: see `unconfirmed`.

        Args:
            now_s: Monotonic.
            usage: To be booked.
            spent: To be booked.
            quotas: Scopes whose spending is asked for.
            last: This replica ends, and gives back what it holds.
        """
        self._number += 1
        alone_s = None if self.answered_s is None else now_s - self.answered_s
        holdings: dict[Meter, Holding] = {}
        for meter, held in list(self._slices.items()):
            if self.alone:
                held.draw(now_s)
            holdings[meter] = held.report(now_s, last=last)
            if now_s - held.used_s > _IDLE_S and not self.alone and not held.busy:
                del self._slices[meter]
                self.forgotten += 1
        self._unconfirmed = Report(self.replica, self._number, self._seen, alone_s, holdings, usage, spent, quotas)
        return self._unconfirmed

    def unconfirmed(self, now_s: float) -> Report | None:
        """Returns the report that no ledger has answered yet, to be sent again before any other; None if there is none.

        Only how long the replica has been alone is brought up to date.
        """
        report = self._unconfirmed
        if report is None or self.answered_s is None:
            return report
        return replace(report, alone_s=now_s - self.answered_s)

    def answered(self, reply: Reply, now_s: float) -> None:
        """Adopts the answer to the last report."""
        self._unconfirmed = None
        if reply.settling:
            self.lost(now_s)  # first: once it knows a level, a slice has met the ledger, and draws no first share
        self._adopt(reply, {}, now_s)
        if not reply.settling:
            self.alone = False
            self.answered_s = now_s
            for held in self._slices.values():
                held.meet()

    def leased(self, reply: Reply, asks: Mapping[Meter, Ask], now_s: float) -> None:
        """Adopts what the ledger gave at once."""
        if reply.settling:
            self.lost(now_s)
            return
        self._adopt(reply, asks, now_s)

    def lost(self, now_s: float) -> None:
        """Begins the time alone; every slice refills itself at its share from now on."""
        self.alone = True
        for held in self._slices.values():
            held.draw(now_s)

    def _adopt(self, reply: Reply, asks: Mapping[Meter, Ask], now_s: float) -> None:
        late = reply.serial <= self._seen
        for meter, grant in reply.grants.items():
            held = self._slices.get(meter)
            # Seats of an answer that was overtaken are back at the ledger: its next report does not name them.
            if held is not None and not (late and isinstance(held, SeatSlice)):
                grant = grant._replace(share=0.0) if late else grant  # a newer one is known
                held.apply(grant, now_s, asks[meter].needed if meter in asks else 0.0)
        self._seen = max(self._seen, reply.serial)
