"""Accounts, charges and meters where nobody limits or counts: requests pass, and cost nothing."""

from collections.abc import Iterable
from contextlib import AbstractAsyncContextManager, nullcontext
from itertools import count
from typing import ClassVar

from opentelemetry.trace import Span

from policies import Decision
from serve.access.principal import Principal
from serve.http1.message import RawHeaders
from serve.limits.accounts import Accounts
from serve.limits.answer_meter import Meter
from serve.limits.charge import Charge
from serve.limits.plan import Standing
from serve.limits.usage import Usage
from serve.request.body_reader import ReadRequest
from serve.routing.class_queue import Turn
from serve.stream.continuation import KeptPrefix
from serve.stream.line import Stage
from serve.stream.token_ids import TokenIds

_NO_SEAT = nullcontext()
_MEASURED_OF = 8  # attempts, the first included


class NullMeter(Stage):
    """Measures nothing; see `Meter`."""

    usage: ClassVar[Usage | None] = None
    kept_tokens: ClassVar[int] = 0

    def answered(self, status: int) -> None:
        """Does nothing."""


_NULL_METER = NullMeter()


class NullCharge:
    """Charges nothing; see `Charge`."""

    counts = False

    def __init__(self) -> None:
        self._attempts = count()

    def asks(self, body_bytes: int) -> tuple[float, int | None]:
        """Returns the bytes of the body as the cost, and no limit of requests that wait."""
        return float(body_bytes), None

    def attempt(
        self, pool: str, speculative: bool, takes_out: bool, ids: TokenIds | None = None, kept: KeptPrefix | None = None
    ) -> "NullMeter | Meter":
        """Returns a meter that measures nothing, or for one attempt of some what the engine tells unasked.

        Nobody pays for it, but it says how fast a pool is; to measure all would cost 6 % of the CPU.
        """
        measured = next(self._attempts) % _MEASURED_OF == 0
        return Meter(pool, speculative, takes_out, ids, kept) if measured else _NULL_METER

    def settles(self, turn: Turn) -> None:
        """Does nothing: the turn stays charged as the request asked."""

    def give_up(self) -> None:
        """Does nothing."""

    def settle(self, status: int, span: Span) -> None:
        """Does nothing."""


AnyMeter = NullMeter | Meter
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
