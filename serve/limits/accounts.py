"""One gateway replica's side of limits and usage: reserves before a request is sent, settles when it is over."""

import asyncio
import logging
import time
import uuid
from collections.abc import Callable, Iterable, Mapping, MutableMapping, Sequence
from datetime import UTC, datetime
from typing import Any

from serve.access.principal import Principal
from serve.config.rate_limits import RateLimitsConfig
from serve.errors import RateLimitError, SharedStateError
from serve.limits.charge import Charge
from serve.limits.estimate import Estimates, Size
from serve.limits.holdings import Holdings
from serve.limits.messages import Ask, LedgerClient, Meter, Report, Terms, UsageKey, UsageSums
from serve.limits.plan import Plan, plan_of
from serve.limits.refusal import describe, over_limit, over_quota
from serve.limits.reservation import Line, Reservation, amount_of, reserve
from serve.limits.slice import Slice
from serve.limits.tally import Tally

log = logging.getLogger("ray.serve.specgate.limits")

PERIOD_S = 1.0
LEASE_TIMEOUT_S = 0.02  # the longest that a request waits for the ledger


class Accounts:
    """Limits and usage of the requests that pass through this replica.

    Args:
        config: Settings.
        ledger: Reaches the ledger that all replicas share.
        replicas: Gateway replicas that there are.
        clock: Monotonic seconds.
        calendar: The time of day.

    Attributes:
        tally: Usage, for metrics.
        estimates: What was learned of models and keys.
    """

    def __init__(
        self,
        config: RateLimitsConfig,
        ledger: LedgerClient,
        replicas: int = 1,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
    ) -> None:
        self.tally = Tally()
        self.estimates = Estimates(config.estimate == "strict", config.tokens_per_image)
        self._config = config
        self._ledger = ledger
        self._clock = clock
        self._calendar = calendar
        self._begun_s = clock()
        self._holdings = Holdings(uuid.uuid4().hex, replicas, self._begun_s)
        self._plans: dict[tuple[str, str, str], Plan] = {}
        self._forgotten = 0
        self._month = (0, 0)
        self._months: Mapping[str, float] = {}  # spending by scope, as the ledger knows it
        self._waiting: dict[Meter, list[Ask]] = {}
        self._round: asyncio.Future[None] | None = None
        self._asking: asyncio.Task[None] | None = None
        self._told = False

    @property
    def alone(self) -> bool:
        """True while this replica spends its last shares, because the ledger does not answer."""
        return self._holdings.alone

    @property
    def ledger_age_s(self) -> float:
        """Seconds since the ledger's last answer; since the start if there was none."""
        return self._clock() - (self._holdings.answered_s or self._begun_s)

    async def reserve(
        self,
        principal: Principal,
        model: str,
        request_class: str,
        size: Size,
        headers: MutableMapping[str, str],
    ) -> Charge:
        """Reserves what a request will probably cost. It waits for the ledger for 20 ms at most.

        Args:
            principal: Who asks.
            model: The model's own name.
            request_class: Of the policy; answers of one class are about equally long.
            size: Of the request.
            headers: The response's, to which those about limits are added.

        Raises:
            RateLimitError: A limit does not let it pass now.
            QuotaError: The month's quota is spent.
        """
        plan = self._plan(principal, model)
        group = (principal.key_id, model, request_class)
        cap = self._config.output_caps.get(model, self._config.output_cap)
        weights = self._config.weights
        tokens = self.estimates.input(model, size)
        cost = weights.input * tokens + weights.output * self.estimates.output(group, size, cap)
        self._check_quotas(plan)
        now_s = self._clock()
        if self._holdings.alone:
            _draw(plan.lines, now_s)
        reservation = reserve(plan.lines, cost, now_s)
        if reservation is None:
            try:
                reservation = await self._reserve_slowly(plan, cost)
            except RateLimitError:
                describe(plan.lines, headers)
                raise
        if plan.lines:
            describe(plan.lines, headers)
        return Charge(plan, group, size, reservation, tokens, self.estimates, self._book)

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns the usage of all replicas; see `UsageBook.usage`.

        Raises:
            ConfigError: There is no such dimension.
            SharedStateError: The ledger can't be reached.
        """
        return await self._ledger.usage(by, since, until)

    async def run(self) -> None:
        """Calls `sync` every second, forever."""
        while True:
            await self.sync()
            await asyncio.sleep(PERIOD_S)

    async def sync(self) -> None:
        """Reports to the ledger and adopts what it grants. Not reentrant."""
        self._turn_month()
        resent = True
        while resent:
            old = self._holdings.unconfirmed(self._clock())
            resent = old is not None
            report = old or self._next_report()
            try:
                reply = await self._ledger.sync(report)
            except SharedStateError as error:
                self._lost(error)
                return
            self._holdings.answered(reply, self._clock())
            self._months = {**self._months, **reply.spent}
        if self._told and not self._holdings.alone:
            log.warning("the ledger is back")
            self._told = False

    def _book(self, plan: Plan, key: UsageKey, sums: UsageSums, cost: float) -> None:
        """Counts a request that is over."""
        self.tally.add(key, sums)
        for quota in plan.quotas:
            self.tally.spend(quota.scope, cost)

    def _next_report(self) -> Report:
        usage, spent = self.tally.take()
        for scope, cost in spent:  # until the ledger's next answer counts it
            self._months = {**self._months, scope: self._months.get(scope, 0.0) + cost}
        quotas = tuple({quota.scope for plan in self._plans.values() for quota in plan.quotas})
        report = self._holdings.report(self._clock(), usage, spent, quotas)
        if self._holdings.forgotten != self._forgotten:
            self._forgotten = self._holdings.forgotten
            self._plans.clear()
        return report

    def _lost(self, error: SharedStateError) -> None:
        if not self._told:
            log.warning("%s Until then this replica spends its last share of each limit. %r", error, error.__cause__)
        self._told = True
        self._holdings.lost(self._clock())

    def _plan(self, principal: Principal, model: str) -> Plan:
        name = (principal.key_id, principal.tenant.name, model)
        plan = self._plans.get(name)
        if plan is None or plan.principal is not principal:
            plan = plan_of(principal, model, self._config, self._slice)
            self._plans[name] = plan
        return plan

    def _slice(self, meter: Meter, terms: Terms) -> Slice:
        return self._holdings.slice(meter, terms, self._clock())

    def _check_quotas(self, plan: Plan) -> None:
        for quota in plan.quotas:
            spent = self._months.get(quota.scope, 0.0) + self.tally.unreported(quota.scope)
            if spent < quota.limit:
                continue
            self._count_refusal(plan, "month", quota.shadow)
            if not quota.shadow:
                raise over_quota(quota, spent)

    def _turn_month(self) -> None:
        """Forgets the spending of the month that is over."""
        now = self._calendar()
        if (month := (now.year, now.month)) != self._month:
            self._month = month
            self._months = {}

    async def _reserve_slowly(self, plan: Plan, cost: float) -> Reservation:
        """Reserves with what the ledger gives at once."""
        deadline_s = self._clock() + LEASE_TIMEOUT_S
        while True:
            now_s = self._clock()
            over = self._holdings.alone or now_s >= deadline_s
            open_: list[Line] = []
            refusing: list[tuple[float, Line]] = []
            for line in plan.lines:
                amount = amount_of(line.held, cost)
                if line.held.affords(amount):
                    continue
                wait_s = line.held.wait_s(amount, now_s)
                if wait_s > 0 or over:
                    refusing.append((wait_s, line))
                else:
                    open_.append(line)
            enforced = [(wait_s, line) for wait_s, line in refusing if not line.shadow]
            if enforced:
                wait_s, line = max(enforced, key=lambda each: each[0])
                self._count_refusal(plan, line.held.meter.kind, shadow=False)
                raise over_limit(line, wait_s)
            if not open_:
                for _, line in refusing:
                    self._count_refusal(plan, line.held.meter.kind, shadow=True)
                shadows = [line for _, line in refusing]
                reservation = reserve([line for line in plan.lines if line not in shadows], cost, now_s)
                assert reservation is not None
                return reservation
            await self._ask(open_, cost, deadline_s - now_s)
            if self._holdings.alone:
                _draw(plan.lines, self._clock())

    async def _ask(self, short: list[Line], cost: float, timeout_s: float) -> None:
        """Asks the ledger for what is missing; returns when it has answered, or is not going to."""
        for held, _ in short:
            self._waiting.setdefault(held.meter, []).append(held.ask(amount_of(held, cost)))
        if self._round is None:
            self._round = asyncio.get_running_loop().create_future()
        answered = self._round
        if self._asking is None or self._asking.done():
            self._asking = asyncio.create_task(self._ask_in_rounds())
        done, _ = await asyncio.wait({answered}, timeout=timeout_s)
        if not done:
            self._lost(SharedStateError("The ledger of limits does not answer."))

    async def _ask_in_rounds(self) -> None:
        """Asks for what requests are waiting for, all that have come since the last answer at once."""
        while self._round is not None:
            waiting, self._waiting = self._waiting, {}
            answered, self._round = self._round, None
            # The first one's need, and the others' as far as there is something.
            asks = {
                meter: Ask(first.terms, first.needed, first.wanted + sum(ask.needed for ask in others))
                for meter, (first, *others) in waiting.items()
            }
            try:
                reply = await self._ledger.lease(self._holdings.replica, asks)
            except SharedStateError as error:
                self._lost(error)
            else:
                self._holdings.leased(reply, asks, self._clock())
            finally:
                answered.set_result(None)

    def _count_refusal(self, plan: Plan, limit: str, shadow: bool) -> None:
        tenant = self.tally.label(plan.principal.tenant.name)
        self.tally.refused[tenant, limit, "shadow" if shadow else "enforced"] += 1


def _draw(lines: Iterable[Line], now_s: float) -> None:
    """Lets the slices of a replica that is alone refill themselves."""
    for held, _ in lines:
        held.draw(now_s)
