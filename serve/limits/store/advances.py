"""All that one cluster's ledger holds of the store's, and its side of the protocol. No I/O."""

from collections.abc import Mapping
from typing import NamedTuple, TypeVar

from serve.limits.messages import Ask, Grant, Holding, Meter, Terms
from serve.limits.store.messages import Answer, Entry, Message, Spent
from serve.limits.store.slices import IDLE_S, RateAdvance, SeatAdvance

Held = TypeVar("Held", RateAdvance, SeatAdvance)

_KEEP_S = 600.0  # for which the store's last answer about a meter is remembered; the store remembers for longer


class _Told(NamedTuple):
    """The store's last answer about a meter.

    Attributes:
        number: Of the message.
        at: The store's time.
        at_s: Monotonic, here.
    """

    number: int = 0
    level: float = 0.0
    share: float = 0.0
    at: float = 0.0
    at_s: float = 0.0


class Advances:
    """The slices of one cluster.

    Args:
        member: A name that no other ledger ever has.
        clusters: That share the store.

    Attributes:
        pending: The message that is not answered yet, to be sent before any other.
    """

    def __init__(self, member: str, clusters: int) -> None:
        self.member = member
        self.pending: Message | None = None
        self._clusters = clusters
        self._rates: dict[Meter, RateAdvance] = {}
        self._seats: dict[Meter, SeatAdvance] = {}
        self._told: dict[Meter, _Told] = {}
        self._asked: Mapping[Meter, Ask] = {}  # by the message that is pending
        self._number = 0
        self._alone = False

    def rate(self, meter: Meter, terms: Terms, now_s: float) -> RateAdvance:
        """Returns the slice of a rate, under the terms as they are now."""
        rate = self._held(self._rates, RateAdvance, meter, terms, now_s)
        if rate.alone:
            rate.draw(now_s)
        return rate

    def seats(self, meter: Meter, terms: Terms, now_s: float) -> SeatAdvance:
        """Returns the seats of a concurrency, under the terms as they are now."""
        return self._held(self._seats, SeatAdvance, meter, terms, now_s)

    def short(self, asks: Mapping[Meter, Ask], now_s: float) -> dict[Meter, Ask]:
        """Returns what the store must be asked for before something can be given out."""
        missing: dict[Meter, Ask] = {}
        for meter, ask in asks.items():
            held = self._slice(meter, ask.terms, now_s)
            if not held.alone and not held.affords(ask.needed) and not held.wait_s(ask.needed, now_s):
                missing[meter] = held.ask(ask.needed)
        return missing

    def improvise(self, asks: Mapping[Meter, Ask], now_s: float) -> None:
        """Lets slices that the store has never told of begin on their own, since it is slow to answer."""
        for meter, ask in asks.items():
            if meter not in self._told:
                self._slice(meter, ask.terms, now_s).draw(now_s)

    def report(self, spent: Mapping[str, Spent], now_s: float) -> Message:
        """Returns the message of each second, about all slices. The last one must have been answered."""
        entries: dict[Meter, Entry] = {}
        for meter, rate in list(self._rates.items()):
            if rate.alone:
                rate.draw(now_s)
            entries[meter] = self._of_rate(rate, rate.report(now_s))
            if now_s - rate.used_s > IDLE_S and not rate.alone:
                del self._rates[meter]
        for meter, seats in list(self._seats.items()):
            entries[meter] = self._of_seats(seats, seats.report(now_s))
            if now_s - seats.used_s > IDLE_S and not seats.alone and not seats.busy:
                del self._seats[meter]
        self._told = {meter: told for meter, told in self._told.items() if now_s - told.at_s < _KEEP_S}
        return self._next(entries, spent)

    def ask(self, asks: Mapping[Meter, Ask], now_s: float) -> Message:
        """Returns a message about what is needed at once. The last one must have been answered."""
        entries: dict[Meter, Entry] = {}
        for meter, ask in asks.items():
            if meter.kind == "concurrency":
                seats = self.seats(meter, ask.terms, now_s)
                entries[meter] = self._of_seats(seats, seats.urgent(ask), ask.needed)
            else:
                rate = self.rate(meter, ask.terms, now_s)
                entries[meter] = self._of_rate(rate, rate.urgent(ask), ask.needed)
        self._asked = asks
        return self._next(entries, {})

    def answered(self, answer: Answer, now_s: float) -> None:
        """Adopts the answer to the pending message."""
        assert self.pending is not None
        number, self.pending = self.pending.number, None
        asked, self._asked = self._asked, {}
        self._alone = False
        for meter, advance in answer.advances.items():
            self._told[meter] = _Told(number, advance.level, advance.share, answer.at, now_s)
            held = self._rates.get(meter) or self._seats.get(meter)
            if held is None:
                continue  # it was given back
            needed = asked[meter].needed if meter in asked and not advance.settling else 0.0
            held.apply(Grant(advance.amount, advance.level, advance.share, advance.wait_s), now_s, needed)
            if advance.settling:
                held.draw(now_s)
            else:
                held.meet()

    def lost(self, now_s: float) -> None:
        """Begins the time without the store; every slice refills itself at its share from now on."""
        self._alone = True
        for rate in self._rates.values():
            rate.draw(now_s)
        for seats in self._seats.values():
            seats.draw(now_s)

    def _slice(self, meter: Meter, terms: Terms, now_s: float) -> RateAdvance | SeatAdvance:
        return (self.seats if meter.kind == "concurrency" else self.rate)(meter, terms, now_s)

    def _held(self, slices: dict[Meter, Held], kind: type[Held], meter: Meter, terms: Terms, now_s: float) -> Held:
        """Returns a slice, under the terms as they are now.

        A new one is told what the store told of its meter, before the last one was forgotten.

        Args:
            slices: Where it is kept.
            kind: Its class.
            meter: What is limited.
            terms: The limit.
            now_s: Monotonic.
        """
        held = slices.get(meter)
        if held is None:
            held = slices[meter] = kind(meter, terms, self._clusters, now_s)
            if (told := self._told.get(meter)) is not None:
                held.apply(Grant(0.0, told.level, told.share), now_s)
            if self._alone:
                held.draw(now_s)
        held.terms = terms
        return held

    def _of_rate(self, held: RateAdvance, holding: Holding, needed: float = 0.0) -> Entry:
        told = self._told.get(held.meter, _Told())
        return Entry(
            rate=held.terms.rate_per_s,
            capacity=held.terms.capacity,
            owed=holding.drawn - holding.returned,
            needed=needed,
            wanted=holding.wanted,
            demand=holding.demand_per_s,
            share=held.share,
            prev=told.number,
            told=told.level,
            told_at=told.at,
        )

    def _of_seats(self, held: SeatAdvance, holding: Holding, needed: float = 0.0) -> Entry:
        told = self._told.get(held.meter, _Told())
        return Entry(
            rate=0.0,
            capacity=held.terms.capacity,
            needed=needed,
            wanted=holding.wanted,
            claimed=holding.held,
            prev=told.number,
            told=told.level,
            told_at=told.at,
        )

    def _next(self, entries: Mapping[Meter, Entry], spent: Mapping[str, Spent]) -> Message:
        self._number += 1
        self.pending = Message(self.member, self._number, entries, spent)
        return self.pending
