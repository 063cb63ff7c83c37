"""One gateway replica's side of limits and usage: reserves before a request is sent, and reports to the ledger.

At its end, what operators see of them: metrics, and the sums of usage.
"""

import asyncio
import logging
import time
from collections.abc import AsyncIterator, Callable, Iterable, Iterator, Mapping, Sequence
from contextlib import AbstractAsyncContextManager, AbstractContextManager, asynccontextmanager, nullcontext, suppress
from datetime import UTC, datetime
from typing import Any

import fastapi

from policies import Decision
from policies.classes import class_of_names
from serve.access.principal import Principal
from serve.config.rate_limits import RateLimitsConfig
from serve.errors import SharedStateError
from serve.http1.message import RawHeaders
from serve.http1.turns import LONG_BODY_BYTES, beside
from serve.limits.book import DIMENSIONS, dimensions, instant
from serve.limits.charge import NULL_CHARGE, Charge, NullCharge
from serve.limits.estimate import Estimates, RequestSize, size_of
from serve.limits.ledger_messages import Grants, LimitId, LimitTerms, Statement
from serve.limits.quota import Spending
from serve.limits.request_limits import RequestLimits, Standing, limits_of, over_limit, request_limits, tenant_scope
from serve.limits.slice import Holdings, Reservation, Slice, reserve
from serve.limits.usage import Tally
from serve.request.body_reader import ReadRequest
from serve.shared.link import Link
from serve.shared.report import Reporter
from serve.telemetry.metrics import Metrics, Reading

log = logging.getLogger("ray.serve.specgate.limits")

PERIOD_S = 1.0
PATIENCE_S = 0.02  # of silence, after which requests no longer wait for the ledger
_LATE_S = 1.0  # that a request waits for an answer on its way before it is refused for want of one
_END_S = 2.0
_NO_SEAT = nullcontext()
_ROUNDS = 10  # in which a request asks the ledger, if others take what came for it
_FIELDS = {
    "requests": "requests_per_minute", "tokens": "tokens_per_minute", "concurrency": "concurrency",
    "month": "tokens_per_month",
}  # fmt: skip


class Accounts:
    """Limits and usage of the requests that pass through this replica. `names` has the models' own names by every name
    under which limits may call them.
    """

    def __init__(
        self,
        config: RateLimitsConfig,
        link: Link,
        replicas: int = 1,
        clock: Callable[[], float] = time.monotonic,
        calendar: Callable[[], datetime] = lambda: datetime.now(UTC),
        names: Mapping[str, str] | None = None,
    ) -> None:
        self.tally = Tally(config.weights)
        self.spending = Spending(calendar)
        self.estimates = Estimates(config.estimate == "strict", config.tokens_per_image)
        self._config = config
        self._link = link
        self._clock = clock
        self._names = names or {}
        self._unknown: set[tuple[str, str]] = set()  # tenants, with names of models that are none
        self._holdings = Holdings(replicas)
        self._reporter: Reporter[Statement, Grants] = Reporter(
            lambda report: link.call("take", report),
            self._collect,
            self._adopt,
            "the ledger",
            "Until then this replica spends its last share of each limit.",
            log,
            clock,
        )
        self._limits: dict[tuple[str, str, str], RequestLimits] = {}
        self._forgotten = 0
        self._is_due = False  # a statement about everything
        self._is_last = False
        self._next_round: asyncio.Future[None] | None = None
        self._rounds: asyncio.Task[None] | None = None
        self._late: set[asyncio.Task[None]] = set()

    @property
    def alone(self) -> bool:
        """True while this replica spends its last shares, because the ledger does not answer."""
        return self._reporter.alone

    @property
    def ledger_age_s(self) -> float:
        """Seconds since the ledger's last answer; since the start if there was none."""
        return self._reporter.age_s

    def standings(self) -> Iterator[Standing]:
        """Yields the tenants that were seen, with their limits and what they use of them."""
        for tenant, limits in list(self.tally.limits.items()):
            scope = tenant_scope(tenant)
            yield Standing(tenant, limits, self._holdings.in_use(scope), self.spending.of(scope))

    async def admit(
        self,
        principal: Principal,
        decision: Decision,
        read: ReadRequest,
        headers: RawHeaders,
        step: Callable[[str], AbstractContextManager[object]] = nullcontext,
    ) -> Charge:
        """Reserves what a completion may cost; see `reserve`. Headers about limits are added to the response's.

        Raises:
            RateLimitError: A limit does not let it pass now.
            QuotaError: The month's quota is spent.
        """
        if len(read.body) > LONG_BODY_BYTES:
            size = await beside(True, size_of, read.body, read.parsed, read.features)
        else:
            size = size_of(read.body, read.parsed, read.features)
        request_class, _ = class_of_names(decision.classes)
        with step("limits"):
            return await self.reserve(principal, decision.model, request_class, size, headers)

    async def reserve(
        self, principal: Principal, model: str, request_class: str, size: RequestSize, headers: RawHeaders
    ) -> Charge:
        """Reserves what a request will probably cost. It waits for a silent ledger for 20 ms at most, and for a second
        before it refuses while an answer is on its way. Headers about limits are added to the response's.

        Raises:
            RateLimitError: A limit does not let it pass now.
            QuotaError: The month's quota is spent.
        """
        limits = self._limits_of(principal, model)
        for quota in limits.quotas:
            if self.spending.is_over(quota):
                self._count_refusal(limits, "month", quota.shadow)
                if not quota.shadow:
                    raise self.spending.refusal(quota)
        group = (principal.tenant.name, principal.key_id, model, request_class)
        tokens, output = self.estimates.of(group, size, limits.output_cap)
        cost = limits.weights.input * tokens + limits.weights.output * output
        reservation = await self._reserved(limits, cost, headers) if limits.slices else Reservation((), cost)
        return Charge(limits, group, size, reservation, tokens, self.estimates, self.tally, self.spending)

    @asynccontextmanager
    async def passing(self, principal: Principal, model: str, headers: RawHeaders) -> AsyncIterator[None]:
        """Counts a request that asks for no answer, such as a count of tokens: it takes a seat, and spends no tokens.

        Raises:
            RateLimitError: A limit does not let it pass now.
        """
        limits = self._limits_of(principal, model)
        limits = limits._replace(slices=tuple([held for held in limits.slices if held.kind != "tokens"]))
        reservation = await self._reserved(limits, 0.0, headers)
        try:
            yield
        finally:
            reservation.settle(0.0)

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns the usage of all replicas; see `UsageBook.usage`.

        Raises:
            SharedStateError: The ledger can't be reached.
        """
        return await self._link.call("usage", by, since, until)  # type: ignore[no-any-return]

    async def run(self) -> None:
        """Calls `sync` every second, forever."""
        while True:
            await self.sync()
            await asyncio.sleep(PERIOD_S)

    async def end(self) -> None:
        """Reports a last time, once `run` has ended: the usage since its last report, and all that is not spent."""
        with suppress(TimeoutError):  # the ledger may be gone with the cluster
            async with asyncio.timeout(_END_S):
                await self.sync(last=True)

    async def sync(self, *, last: bool = False) -> None:
        """Reports everything to the ledger and adopts what it grants. The last time, nothing will be needed any more,
        so that all that is held goes back.
        """
        self._is_due = True
        self._is_last = last
        await self._exchange()

    async def _exchange(self) -> None:
        if not await self._reporter.sync():
            self._holdings.lost(self._clock())

    def _collect(self) -> Statement:
        now_s = self._clock()
        if not self._is_due:
            return Statement(self._holdings.needed(now_s))
        self._is_due = False
        quotas = tuple({quota.scope for limits in self._limits.values() for quota in limits.quotas})
        holdings = self._holdings.all(now_s, last=self._is_last)
        if self._holdings.forgotten != self._forgotten:
            self._forgotten = self._holdings.forgotten
            self._limits.clear()
        return Statement(holdings, self.tally.take(), self.spending.take(), quotas)

    def _adopt(self, state: Grants) -> None:
        self._holdings.adopt(state.grants, self._clock())
        self.spending.adopt(state.month, state.spent)

    def _limits_of(self, principal: Principal, model: str) -> RequestLimits:
        limits = self._limits.get((principal.key_id, principal.tenant.name, model))
        if limits is None or limits.principal is not principal:
            limits = self._new_limits(principal, model)
        return limits

    def _new_limits(self, principal: Principal, model: str) -> RequestLimits:
        limits = request_limits(principal, model, self._config, self._slice, self._names)
        for name in principal.tenant.model_limits.keys() - self._names.keys() if self._names else ():
            if (missed := (principal.tenant.name, name)) not in self._unknown:
                self._unknown.add(missed)
                log.warning("the tenant %s has limits for %r, which is no model of this gateway", *missed)
        self._limits[principal.key_id, principal.tenant.name, model] = limits
        self.tally.meet(principal.tenant.name, limits_of(principal.tenant, self._config.default))
        return limits

    def _slice(self, id: LimitId, terms: LimitTerms, shadow: bool) -> Slice:
        return self._holdings.slice(id, terms, self._clock(), alone=self._reporter.alone, shadow=shadow)

    async def _reserved(self, limits: RequestLimits, cost: float, headers: RawHeaders) -> Reservation:
        try:
            return self._reserve(limits.slices, cost) or await self._reserve_slowly(limits, cost)
        finally:  # of a refusal as well
            for each in limits.headers:
                each.write(headers)

    def _reserve(self, slices: Sequence[Slice], cost: float) -> Reservation | None:
        """Reserves from every slice, or from none; those of a replica that is alone refill themselves."""
        now_s = self._clock()
        if self._reporter.alone:
            for held in slices:
                held.draw(now_s)
        return reserve(slices, cost, now_s)

    async def _reserve_slowly(self, limits: RequestLimits, cost: float) -> Reservation:
        """Reserves with what the ledger gives at once."""
        begun_s = self._clock()
        for rounds_left in reversed(range(_ROUNDS + 1)):
            may_ask = rounds_left > 0 and not self._reporter.alone
            now_s = self._clock()
            short = [held for held in limits.slices if not held.affords(held.amount(cost))]
            for held in short:
                held.used_s = now_s
            waits = {held: held.wait_s(held.amount(cost), now_s) for held in short}
            refusing = [held for held in short if waits[held] > 0 or not may_ask]
            if enforced := [held for held in refusing if not held.shadow]:
                patience_s = begun_s + _LATE_S - now_s
                if not (self._late and rounds_left and patience_s > 0):
                    worst = max(enforced, key=waits.__getitem__)
                    self._count_refusal(limits, worst.kind, shadow=False)
                    raise over_limit(worst, waits[worst], cost)
                # Better late than a refusal; and if others take what came, the ledger, which is back, is asked again.
                await asyncio.wait({*self._late}, timeout=patience_s)
            elif len(refusing) == len(short):
                break
            else:
                await self._ask([held for held in short if held not in refusing], cost)
            if reservation := self._reserve(limits.slices, cost):
                return reservation
        for held in refusing:
            self._count_refusal(limits, held.kind, shadow=True)
        reservation = reserve([held for held in limits.slices if held not in refusing], cost, now_s)
        assert reservation is not None
        return reservation

    async def _ask(self, short: Sequence[Slice], cost: float) -> None:
        """Asks the ledger for what is missing, together with all other requests that wait.

        Returns when it has answered, or is not going to.
        """
        for held in short:
            held.needs.append(held.amount(cost))
        if self._next_round is None:
            self._next_round = asyncio.get_running_loop().create_future()
        answered = self._next_round
        if self._rounds is None or self._rounds.done():
            self._rounds = asyncio.create_task(self._ask_in_rounds())
        await asyncio.wait({answered})  # which is everybody's, so that no request that is cancelled may take it along

    async def _ask_in_rounds(self) -> None:
        while (answered := self._next_round) is not None:
            self._next_round = None
            try:
                if self._holdings.has_needs and not self._reporter.alone:
                    await self._exchange_soon()
            finally:
                answered.set_result(None)

    async def _exchange_soon(self) -> None:
        """Asks once. Nobody waits any longer for a ledger that is silent; what it says later counts all the same."""
        call = asyncio.create_task(self._exchange())
        for _ in range(2):  # in two parts: where the event loop was held all the time, the answer may be there by now
            await asyncio.wait({call}, timeout=PATIENCE_S / 2)
        if not call.done():
            self._late.add(call)
            call.add_done_callback(self._late.discard)
            silence = f"The ledger of limits does not answer within {PATIENCE_S * 1000:g} ms."
            self._reporter.lost(SharedStateError(silence))
            self._holdings.lost(self._clock())

    def _count_refusal(self, limits: RequestLimits, kind: str, shadow: bool) -> None:
        tenant = self.tally.label(limits.principal.tenant.name)
        self.tally.refused[tenant, kind, "shadow" if shadow else "enforced"] += 1


class NullAccounts:
    """Lets every request pass, where nobody limits or counts; see `Accounts`."""

    async def admit(
        self, principal: Principal, decision: Decision, read: ReadRequest, headers: RawHeaders, step: object = None
    ) -> NullCharge:
        """Returns a charge of nothing."""
        return NULL_CHARGE

    def passing(self, principal: Principal, model: str, headers: RawHeaders) -> AbstractAsyncContextManager[None]:
        """Returns a context that does nothing."""
        return _NO_SEAT

    def standings(self) -> Iterable[Standing]:
        """Returns nobody."""
        return ()


NULL_ACCOUNTS = NullAccounts()
AnyAccounts = NullAccounts | Accounts


def usage_routes(accounts: Accounts) -> fastapi.APIRouter:
    """Returns `/admin/v1/usage`, which shows operators who has used how much."""
    router = fastapi.APIRouter()

    @router.api_route("/admin/v1/usage", methods=["GET", "HEAD"])
    async def usage(by: str = ",".join(DIMENSIONS), since: str = "", until: str = "") -> dict[str, Any]:
        """Returns sums of usage over all replicas, a row for each set of values of the dimensions in `by`."""
        names = dimensions(by)
        return {"object": "list", "data": await accounts.usage(names, instant(since), instant(until))}

    return router


def show_limits(metrics: Metrics, accounts: Accounts) -> None:
    def limits() -> Iterator[tuple[tuple[str, str], float]]:
        for standing in accounts.standings():
            for kind, field in _FIELDS.items():
                if (value := getattr(standing.limits, field)) is not None:
                    yield (standing.tenant, kind), value

    def of_tenants(field: str, value: Callable[[Standing], float]) -> Reading:
        return lambda: (
            ((standing.tenant,), value(standing))
            for standing in accounts.standings()
            if getattr(standing.limits, field) is not None
        )

    tally = accounts.tally
    metrics.read(
        "counter", "specgate_tokens_total", "Tokens by tenant and kind; tenants beyond the 200th as `other`",
        ["tenant", "model", "kind"], tally.tokens.items,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_limits_refused_total", "Requests that a limit refused, or would have (`shadow`)",
        ["tenant", "limit", "mode"], tally.refused.items,
    )  # fmt: skip
    metrics.read(
        "counter", "specgate_limits_used_total", "Requests and weighted tokens, as limits count them",
        ["tenant", "limit"], tally.used.items,
    )  # fmt: skip
    metrics.read(
        "gauge", "specgate_limits_limit",
        "Limits of tenants: `requests` and `tokens` per minute, `concurrency`, weighted tokens per `month`",
        ["tenant", "limit"], limits,
    )  # fmt: skip
    metrics.read(
        "gauge", "specgate_limits_in_use", "Requests under way of tenants with a limit of concurrency", ["tenant"],
        of_tenants("concurrency", lambda standing: standing.in_use),
    )  # fmt: skip
    metrics.read(
        "gauge", "specgate_limits_month_spent", "Weighted tokens of this month, of tenants with a quota", ["tenant"],
        of_tenants("tokens_per_month", lambda standing: standing.spent),
    )  # fmt: skip
    metrics.read(
        "gauge", "specgate_ledger_age_seconds",
        "Time since the ledger of limits, or its store, last answered",
        ["mode"], lambda: [(("alone" if accounts.alone else "shared",), accounts.ledger_age_s)],
    )  # fmt: skip
