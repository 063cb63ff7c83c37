"""Accounts and charges where nobody limits or counts: requests pass, and cost nothing."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext

from opentelemetry.trace import Span

from policies import Decision
from serve.access.principal import Principal
from serve.http1.message import RawHeaders
from serve.limits.accounts import Accounts
from serve.limits.answer_meter import Meter
from serve.limits.charge import Charge
from serve.limits.plan import Standing
from serve.request.body_reader import ReadRequest
from serve.routing.class_queue import Turn

_NO_SEAT = nullcontext()


class NullCharge:
    """Charges nothing; see `Charge`."""

    counts = False

    def asks(self, body_bytes: int) -> tuple[float, int | None]:
        """Returns the bytes of the body as the cost, and no limit of requests that wait."""
        return float(body_bytes), None

    def attempt(self, pool: str, speculative: bool, takes_out: bool) -> Meter:
        """Returns a meter of what the engine tells unasked: nobody pays for it, but it says how fast a pool is."""
        return Meter(pool, speculative, takes_out)

    def settles(self, turn: Turn) -> None:
        """Does nothing: the turn stays charged as the request asked."""

    def give_up(self) -> None:
        """Does nothing."""

    def settle(self, status: int, span: Span) -> None:
        """Does nothing."""


NULL_CHARGE = NullCharge()


class NullAccounts:
    """Lets every request pass; see `Accounts`."""

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
AnyCharge = NullCharge | Charge
