"""What one request is charged: its reservation, the usage of its attempts, and the one settlement."""

from collections.abc import Callable

from opentelemetry.trace import Span

from serve.limits.answer_meter import AnswerMeter
from serve.limits.estimate import Estimates, Group, Size
from serve.limits.messages import UsageKey, UsageSums
from serve.limits.plan import Plan
from serve.limits.reservation import Reservation
from serve.limits.usage import Usage

_OK = 200
_FAILED = 400
_LEFT = 499
Booked = Callable[[Plan, UsageKey, UsageSums, float], None]


class Charge:
    """One request that was admitted.

    Args:
        plan: The limits that it meets.
        group: Its key, model and class.
        size: Of the request.
        reservation: What is reserved for it.
        input_tokens: Estimated.
        estimates: Learn from its answer.
        book: Told of the settlement: usage, and the cost in weighted tokens.
    """

    __slots__ = ("_book", "_estimates", "_group", "_input_tokens", "_meters", "_plan", "_reservation", "_size")

    def __init__(
        self,
        plan: Plan,
        group: Group,
        size: Size,
        reservation: Reservation,
        input_tokens: int,
        estimates: Estimates,
        book: Booked,
    ) -> None:
        self._plan = plan
        self._group = group
        self._size = size
        self._reservation = reservation
        self._input_tokens = input_tokens
        self._estimates = estimates
        self._book = book
        self._meters: list[AnswerMeter] = []

    @property
    def reserved(self) -> float:
        """Weighted tokens that are reserved."""
        return self._reservation.cost

    @property
    def queued(self) -> int | None:
        """See `Plan`."""
        return self._plan.queued

    def attempt(self, pool: str, speculative: bool, takes_out: bool) -> AnswerMeter:
        """Returns the meter of an attempt that is sent now.

        Args:
            pool: Where.
            speculative: With speculation.
            takes_out: As of `AnswerMeter`.
        """
        meter = AnswerMeter(pool, speculative, takes_out)
        self._meters.append(meter)
        return meter

    def settle(self, status: int, span: Span) -> None:
        """Settles by what is known of the answer; does nothing the second time.

        Args:
            status: Of the response to the client; 499 if the client left.
            span: Of the request.
        """
        answered = [meter for meter in self._meters if meter.status == _OK]
        usages = [self._usage(meter) for meter in answered]
        # The client has the last attempt; those before it were broken, which is not the client's fault.
        delivered = usages.pop() if usages else Usage()
        weights = self._plan.weights
        cost = self._reservation.settle(delivered.cost(weights))
        if cost is None:
            return
        if answered and delivered.told:
            self._estimates.learn(self._group, self._size, delivered, answered[-1].frames)
        last = answered[-1] if answered else None
        sums = UsageSums(
            requests=1,
            input=delivered.input,
            cached=delivered.cached,
            output=delivered.output,
            rerun=sum(usage.input + usage.output for usage in usages),
            errors=int(status >= _FAILED and status != _LEFT),
            unsettled=int(not delivered.told),
        )
        principal = self._plan.principal
        key = UsageKey(
            principal.tenant.name,
            principal.key_id,
            self._group[1],
            last.pool if last else "",
            last.speculative if last else False,
        )
        self._book(self._plan, key, sums, cost)
        if span.is_recording():
            span.set_attributes(
                {
                    "specgate.tenant": key.tenant,
                    "gen_ai.usage.input_tokens": delivered.input,
                    "gen_ai.usage.output_tokens": delivered.output,
                }
            )

    def _usage(self, meter: AnswerMeter) -> Usage:
        """Returns an attempt's usage: as the engine told it, else by what has arrived."""
        if meter.usage is not None:
            return meter.usage
        return Usage(self._input_tokens, 0, self._estimates.written(self._group[1], meter.frames), told=False)
