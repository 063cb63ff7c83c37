"""Messages between gateway replicas and the shared ledger, and the replica's view of the ledger."""

from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from datetime import datetime
from typing import Any, Literal, NamedTuple, Protocol

Kind = Literal["tokens", "requests", "concurrency"]


class Meter(NamedTuple):
    """A quantity that is limited: one kind of thing, of one scope.

    Attributes:
        scope: `tenant:NAME`, `key:ID` or `model:TENANT:MODEL`.
        kind: Weighted tokens, requests, or requests at the same time.
    """

    scope: str
    kind: Kind


class Terms(NamedTuple):
    """The limit of a meter.

    Attributes:
        rate_per_s: What flows in each second; 0 for concurrency, whose seats come back instead.
        capacity: What may be spent at once; of concurrency, the limit.
    """

    rate_per_s: float
    capacity: float


class Holding(NamedTuple):
    """A replica's state of one meter, told once a second.

    Attributes:
        terms: The limit, as this replica knows it.
        held: What it was given and has not spent; of concurrency, the seats in use as well.
        returned: Given back with this report: it was not used.
        wanted: What it would like to have in advance, beyond what it holds.
        demand_per_s: What it spends.
        drawn: Spent since the last report without having been given: beyond what was reserved, or because the ledger
            did not answer.
        level: The shared bucket's, as it was told last; None if it never was.
    """

    terms: Terms
    held: float
    returned: float = 0.0
    wanted: float = 0.0
    demand_per_s: float = 0.0
    drawn: float = 0.0
    level: float | None = None

    def again(self) -> "Holding":
        """Returns the same for a report that was booked before."""
        return self._replace(returned=0.0, drawn=0.0)


class Ask(NamedTuple):
    """A replica's need of one meter, at once.

    Attributes:
        needed: All of it or nothing.
        wanted: In advance, as much as there is.
        whole: What the request reserves, of which the replica may hold a part.
    """

    terms: Terms
    needed: float
    wanted: float = 0.0
    whole: float = 0.0

    @classmethod
    def of_all(cls, asks: "Sequence[Ask]") -> "Ask":
        """Returns one for several of the same meter: the first one's need, the others' as far as there is something."""
        first, *others = asks
        return first._replace(wanted=first.wanted + sum(ask.needed for ask in others))


class Grant(NamedTuple):
    """The ledger's part for a replica, of one meter.

    Attributes:
        amount: To spend.
        level: What is left in the shared bucket.
        share: Of the rate, for the time in which the ledger does not answer; of concurrency 0.
        wait_s: If less came than was needed, seconds until it could be there.
    """

    amount: float
    level: float
    share: float = 0.0
    wait_s: float = 0.0


class UsageKey(NamedTuple):
    """By what usage is summed up."""

    tenant: str
    key: str
    model: str
    pool: str
    speculative: bool


USAGE_COLUMNS = ("requests", "input", "cached", "output", "rerun", "errors", "unsettled")


class UsageSums(NamedTuple):
    """Usage of several requests.

    Attributes:
        requests: That were admitted.
        input: Tokens of prompts, those from the prefix cache included.
        cached: Tokens of prompts that came from the prefix cache.
        output: Tokens that were written, and delivered.
        rerun: Tokens of attempts that were not delivered, prompts included; charged to nobody.
        errors: Requests that ended with an error.
        unsettled: Requests whose usage no engine told, so that it is an estimate.
    """

    requests: int = 0
    input: int = 0
    cached: int = 0
    output: int = 0
    rerun: int = 0
    errors: int = 0
    unsettled: int = 0

    def plus(self, other: "UsageSums") -> "UsageSums":
        return UsageSums(*map(int.__add__, self, other))


class Spending(NamedTuple):
    """A cost that counts towards a monthly quota.

    Attributes:
        scope: As of `Meter`.
        cost: In weighted tokens.
    """

    scope: str
    cost: float


@dataclass(frozen=True)
class Report:
    """One replica's message of each second; sent again under the same number until it is answered.

    Attributes:
        replica: A name that no other replica ever has.
        number: Counts up from 1.
        seen: `Reply.serial` of the newest answer that the replica has applied.
        alone_s: Seconds since the last answer of a ledger; None if there never was one.
        usage: Since the last report.
        spent: Since the last report, in scopes with a monthly quota.
        quotas: Scopes whose spending of this month the replica wants to know.
    """

    replica: str
    number: int
    seen: int = 0
    alone_s: float | None = None
    holdings: Mapping[Meter, Holding] = field(default_factory=dict)
    usage: Mapping[UsageKey, UsageSums] = field(default_factory=dict)
    spent: tuple[Spending, ...] = ()
    quotas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Reply:
    """The ledger's answer.

    Attributes:
        serial: Counts the answers to this replica, leases included.
        settling: The ledger has just begun and grants nothing until it knows what others hold.
        grants: By meter.
        spent: Spending of this month by scope, as asked for.
        store_age_s: Seconds since the ledger itself heard the store that clusters share, if there is one.
    """

    serial: int
    settling: bool = False
    grants: Mapping[Meter, Grant] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)
    store_age_s: float = 0.0


class LedgerClient(Protocol):
    """A replica's way to the ledger. Every call raises `SharedStateError` while it can't be reached."""

    async def sync(self, report: Report) -> Reply:
        """Takes a report."""
        ...

    async def lease(self, replica: str, asks: Mapping[Meter, Ask]) -> Reply:
        """Gives what is needed at once."""
        ...

    async def usage(
        self, by: Sequence[str], since: datetime | None = None, until: datetime | None = None
    ) -> list[dict[str, Any]]:
        """Returns sums of usage; see `UsageBook.usage`."""
        ...
