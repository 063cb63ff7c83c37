"""Messages between gateway replicas and the ledger of limits."""

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Literal, NamedTuple

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
    """A replica's state of one meter, and its need.

    Attributes:
        terms: The limit, as this replica knows it.
        held: What it was given and has not spent; of concurrency, the seats in use as well.
        share: Of the rate, which the replica spends while the ledger does not answer.
        demand_per_s: What it spends.
        level: The bucket's, in the ledger's last answer; None if there was none.
        returned: Given back with this report: it was not used.
        drawn: Spent since the last report without having been given: beyond what was reserved, or while the ledger did
            not answer.
        needed: For a request that waits: all of it or nothing.
        whole: What that request reserves, of which the replica may hold a part.
        wanted: In advance, as far as it is there.
    """

    terms: Terms
    held: float = 0.0
    share: float = 0.0
    demand_per_s: float = 0.0
    level: float | None = None
    returned: float = 0.0
    drawn: float = 0.0
    needed: float = 0.0
    whole: float = 0.0
    wanted: float = 0.0


class Grant(NamedTuple):
    """The ledger's answer about one meter.

    Attributes:
        amount: To spend.
        level: What is left in the bucket; below zero it is a debt.
        wait_s: If less came than was needed, seconds until it could be there.
        share: As in `Holding`.
    """

    amount: float
    level: float
    wait_s: float = 0.0
    share: float = 0.0


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
        scope: As in `Meter`.
        cost: In weighted tokens.
    """

    scope: str
    cost: float


@dataclass(frozen=True)
class Statement:
    """The content of a replica's report: of everything once a second, or of what a request needs at once.

    Attributes:
        holdings: By meter.
        usage: Since the last statement.
        spent: Since the last statement, in scopes with a monthly quota.
        quotas: Scopes whose spending of this month the replica wants to know.
    """

    holdings: Mapping[Meter, Holding] = field(default_factory=dict)
    usage: Mapping[UsageKey, UsageSums] = field(default_factory=dict)
    spent: tuple[Spending, ...] = ()
    quotas: tuple[str, ...] = ()


@dataclass(frozen=True)
class Grants:
    """The ledger's answer.

    Attributes:
        grants: By meter.
        spent: Spending of this month by scope, as asked for.
    """

    grants: Mapping[Meter, Grant] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)
