"""The charge of one request: its reservation, the usage of its attempts, and the one settlement."""

from functools import partial
from itertools import count
from typing import ClassVar

from msgspec import Struct
from opentelemetry.trace import Span

from serve.limits.answer_meter import NULL_METER, AnyMeter, Meter
from serve.limits.estimate import Estimates, Group, RequestSize
from serve.limits.quota import Spending
from serve.limits.request_limits import RequestLimits
from serve.limits.slice import Reservation
from serve.limits.usage import Tally, Usage
from serve.routing.fair_queue import Turn
from serve.stream.splice import KeptPrefix
from serve.stream.stages import TokenIds

_OK = 200
_FAILED = 400
_LEFT = 499
_BROKEN = 500
_UNANSWERED = 0
_NOTHING = Usage()
_MEASURED_OF = 8  # attempts that nobody pays for, the first included


class Charge(Struct, eq=False, gc=False):
    """One request that was admitted.

    Attributes:
        group: Its tenant, key, model and class.
        given_up: An engine was still at work when the client left or the time was over.
    """

    limits: RequestLimits
    group: Group
    size: RequestSize
    reservation: Reservation
    input_tokens: int
    estimates: Estimates
    tally: Tally
    spending: Spending
    given_up: bool = False
    _meters: list[Meter] = []
    counts: ClassVar[bool] = True

    def asks(self, body_bytes: int) -> tuple[float, int | None]:
        """Returns the cost at which the request asks for a slot, and how many of its tenant's may wait for one."""
        return self.reservation.cost, self.limits.queued

    def attempt(
        self, pool: str, speculative: bool, ids: TokenIds | None = None, kept: KeptPrefix | None = None
    ) -> Meter:
        """Returns the meter of an attempt that is sent now; the arguments are those of `Meter`."""
        meter = Meter(pool, speculative, ids, kept)
        self._meters.append(meter)
        return meter

    def settles(self, turn: Turn) -> None:
        """Has the turn of the last attempt at its slot charged by what the attempt's meter measures."""
        turn.used = partial(self.used, self._meters[-1])

    def give_up(self) -> None:
        """Notes that an engine was still at work when the time was over."""
        self.given_up = True

    def used(self, meter: Meter) -> float:
        """Returns the weighted tokens that an attempt made its engine work for.

        One that an engine refused counts as its prompt: if it were free, whoever sends requests that fail would always
        be next where requests wait.
        """
        weights = self.limits.weights
        if meter.status != _OK and meter.status != _UNANSWERED:
            return weights.input * self.input_tokens
        return (self._bounded(meter.usage) or self._estimated(meter)).worked(meter.kept_tokens).cost(weights)

    def settle(self, status: int, span: Span) -> None:
        """Settles by what is known of the answer, and frees the seat; does nothing the second time. The status of a
        client that left is 499.
        """
        if not self.reservation.is_open:
            return
        delivered, last, rerun = _NOTHING, None, 0
        given_up = self._meters[-1:] if self.given_up or status == _LEFT else ()
        for meter in self._meters:
            if meter.usage is None and not self.size.streamed and status >= _BROKEN and meter not in given_up:
                continue  # a whole answer that its engine broke off: nothing of it was delivered
            if meter.status == _OK or (meter.status == _UNANSWERED and meter in given_up and not meter.lost):
                # The attempt before it was broken, which is not the client's fault. What an answer keeps of it was
                # written once and read once: the client pays for the one, and the platform's part has as many.
                rerun += delivered.input + delivered.output
                delivered, last = self._bounded(meter.usage) or self._estimated(meter), meter
        limits = self.limits
        cost = delivered.cost(limits.weights)
        self.reservation.settle(cost)
        pool, speculative = "", False
        if last is not None:
            pool, speculative = last.pool, last.speculative
            if delivered.told:
                self.estimates.learn(self.group, self.size, delivered, last)
        tenant, key_id, model, _ = self.group
        failed = _FAILED <= status != _LEFT
        self.tally.add((tenant, key_id, model, pool, speculative), delivered, rerun, failed)
        for quota in limits.quotas:
            self.spending.add(quota.scope, cost)
        if span.is_recording():
            span.set_attributes(
                {
                    "specgate.tenant": tenant,
                    "gen_ai.usage.input_tokens": delivered.input,
                    "gen_ai.usage.output_tokens": delivered.output,
                }
            )

    def _bounded(self, told: Usage | None) -> Usage | None:
        """Returns what an engine has reported, as far as the request allows it."""
        if told is None:
            return None
        size = self.size
        written = told.output if size.most_output is None else min(told.output, size.most_output)
        if told.input <= size.most_input:
            return told if written == told.output else Usage(told.input, told.cached, written)
        return Usage(size.most_input, min(told.cached, size.most_input), written)

    def _estimated(self, meter: Meter) -> Usage:
        """Returns the usage of an attempt whose engine has reported none: by what has arrived of a stream.

        Of an answer that would have come whole nobody knows how far it was; what was reserved for it counts.
        """
        if self.size.streamed and (told := self._bounded(meter.so_far)) is not None:
            return Usage(told.input, told.cached, told.output, told=False)
        if self.size.streamed:
            output = self.estimates.written(self.group, self.size, meter)
        else:
            weights = self.limits.weights
            reserved = self.reservation.cost - weights.input * self.input_tokens
            output = round(reserved / weights.output) if weights.output else 0
        return Usage(self.input_tokens, 0, output, told=False)


class NullCharge:
    """Charges nothing, where nobody limits or counts; see `Charge`."""

    counts = False

    def __init__(self) -> None:
        self._attempts = count()

    def asks(self, body_bytes: int) -> tuple[float, int | None]:
        """Returns the bytes of the body as the cost, and no limit of requests that wait."""
        return float(body_bytes), None

    def attempt(
        self, pool: str, speculative: bool, ids: TokenIds | None = None, kept: KeptPrefix | None = None
    ) -> AnyMeter:
        """Returns a meter that measures nothing, or for one attempt of some what the engine tells unasked.

        Nobody pays for it, but it says how fast a pool is; to measure all would cost 6 % of the CPU.
        """
        return Meter(pool, speculative, ids, kept) if next(self._attempts) % _MEASURED_OF == 0 else NULL_METER

    def settles(self, turn: Turn) -> None:
        """Does nothing: the turn stays charged as the request asked."""

    def give_up(self) -> None:
        """Does nothing."""

    def settle(self, status: int, span: Span) -> None:
        """Does nothing."""


NULL_CHARGE = NullCharge()
AnyCharge = NullCharge | Charge
