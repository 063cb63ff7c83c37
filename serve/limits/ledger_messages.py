"""Messages between gateway replicas and the ledger of limits."""

from collections.abc import Mapping
from typing import Literal, NamedTuple

from msgspec import Struct, field

from serve.limits.usage import UsageKey, UsageSums

Kind = Literal["tokens", "requests", "concurrency"]


class LimitId(NamedTuple):
    """Names a limit: one kind of thing, of one scope.

    Attributes:
        scope: `tenant:NAME`, `key:ID` or `model:TENANT:MODEL`.
        kind: Weighted tokens, requests, or requests at the same time.
    """

    scope: str
    kind: Kind


class LimitTerms(NamedTuple):
    """The amount that a limit allows.

    Attributes:
        rate_per_s: What flows in each second; 0 for concurrency, whose seats come back instead.
        capacity: What may be spent at once; of concurrency, the limit.
    """

    rate_per_s: float
    capacity: float


class Holding(NamedTuple):
    """A replica's state of one limit, and its need.

    Attributes:
        held: What it was given and has not spent; of concurrency, the seats in use as well.
        share: Of the rate, which the replica spends while the ledger does not answer.
        level: The bucket's, in the ledger's last answer; None if there was none.
        returned: Given back with this report: it was not used.
        drawn: Spent since the last report without having been given: beyond what was reserved, or while the ledger did
            not answer.
        needed: For a request that waits: all of it or nothing.
        whole: What that request reserves, of which the replica may hold a part.
        wanted: In advance, as far as it is there.
    """

    terms: LimitTerms
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
    """The ledger's answer about one limit.

    Attributes:
        level: What is left in the bucket; below zero it is a debt.
        wait_s: If less came than was needed, seconds until it could be there.
        share: As in `Holding`.
    """

    amount: float
    level: float
    wait_s: float = 0.0
    share: float = 0.0


class Statement(Struct, frozen=True):
    """The content of a replica's report: of everything once a second, or of what a request needs at once.

    Attributes:
        spent: Since the last statement, by scope with a monthly quota, in weighted tokens.
        quotas: Scopes whose spending of this month the replica wants to know.
    """

    holdings: Mapping[LimitId, Holding] = field(default_factory=dict)
    usage: Mapping[UsageKey, UsageSums] = field(default_factory=dict)
    spent: Mapping[str, float] = field(default_factory=dict)
    quotas: tuple[str, ...] = ()


class Grants(Struct, frozen=True):
    """The ledger's answer.

    Attributes:
        month: By the ledger's clock, when it answered.
        spent: Spending of that month by scope, as asked for.
    """

    grants: Mapping[LimitId, Grant] = field(default_factory=dict)
    month: str = ""
    spent: Mapping[str, float] = field(default_factory=dict)
