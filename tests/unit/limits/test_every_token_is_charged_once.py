"""Every token that an engine made is charged once, to the tenant or the platform, whatever breaks, dies or leaves."""

import sqlite3
from dataclasses import dataclass, field
from datetime import UTC, datetime
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st
from opentelemetry.trace import INVALID_SPAN
from support.limits import LedgerLink

from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig, TokenWeights
from serve.errors import RateLimitError, SharedStateError
from serve.limits.accounts import Accounts
from serve.limits.answer_meter import Meter
from serve.limits.book import UsageBook
from serve.limits.charge import Charge
from serve.limits.estimate import RequestSize
from serve.limits.ledger import Ledger
from serve.limits.quota import month_of
from serve.limits.usage import Usage
from serve.stream.line import Line

REPLICAS = 2
PER_MINUTE = 10**9
BURST = PER_MINUTE / 2
LIMITS = Limits(tokens_per_minute=PER_MINUTE, tokens_per_month=10**12)
PRINCIPAL = Principal("k", Tenant("t", limits=LIMITS), frozenset({"infer"}))
CHUNK = b'data: {"choices":[{"index":0,"delta":{"content":"word"}}]}\n\n'


def usage_frame(usage: Usage) -> bytes:
    return b'data: {"choices":[],"usage":{"prompt_tokens":%d,"completion_tokens":%d}}\n\n' % (usage.input, usage.output)


def told_chunk(usage: Usage) -> bytes:
    told = b',"usage":{"prompt_tokens":%d,"completion_tokens":%d}}' % (usage.input, usage.output)
    return CHUNK.rstrip().removesuffix(b"}") + told + b"\n\n"


class LossyLink(LedgerLink):
    """A ledger in another process, on the way from which answers get lost."""

    def __init__(self, ledger: Ledger) -> None:
        super().__init__(ledger, self._lose)
        self.loses = False

    async def _lose(self) -> None:
        if self.loses:
            raise SharedStateError("The answer is lost.")


class FullBook(UsageBook):
    """A book on a disk that may be full."""

    is_full = False

    def add(self, *what: Any) -> None:
        if self.is_full:
            raise sqlite3.OperationalError("database or disk is full")
        super().add(*what)


@dataclass
class Site:
    """Gateway replicas and their ledger; the clock stands still, so that nothing flows in."""

    book: FullBook = field(default_factory=FullBook)
    charged: list[Usage] = field(default_factory=list)
    rerun: int = 0

    def __post_init__(self) -> None:
        self.link = LossyLink(self.new_ledger())
        self.accounts = [self.new_replica() for _ in range(REPLICAS)]

    def new_ledger(self) -> Ledger:
        return Ledger(self.book, 0.0, lambda: 0.0)

    def new_replica(self) -> Accounts:
        return Accounts(RateLimitsConfig(), self.link, REPLICAS, lambda: 0.0)

    async def request(self, replica: int, end: str, reply: Usage, chunks: int) -> None:
        """One request from its beginning to its end, however that comes."""
        streamed = end.startswith("stream")
        size = RequestSize(4 * reply.input, max_output=reply.output + 50, streamed=streamed)
        try:
            charge = await self.accounts[replica].reserve(PRINCIPAL, "m", "plain", size, [])
        except RateLimitError:  # a replica on its own, whose share does not grow while the clock stands still
            return
        status = getattr(self, "_" + end.replace(" ", "_"))(charge, reply, chunks)
        charge.settle(status, INVALID_SPAN)
        charge.settle(200, INVALID_SPAN)

    def _stream(self, charge: Charge, reply: Usage, chunks: int) -> int:
        self._answer(charge, CHUNK * chunks + usage_frame(reply))
        self.charged.append(reply)
        return 200

    def _stream_that_the_client_leaves(self, charge: Charge, reply: Usage, chunks: int) -> int:
        self._estimated(charge, self._answer(charge, CHUNK * chunks))
        return 499

    def _stream_with_usage_in_each_chunk_that_the_client_leaves(self, charge: Charge, reply: Usage, chunks: int) -> int:
        tokens = [Usage(reply.input, 0, min(reply.output, number)) for number in range(1, chunks + 1)]
        meter = self._answer(charge, b"".join(map(told_chunk, tokens)))
        if tokens:
            self.charged.append(Usage(reply.input, 0, tokens[-1].output, told=False))
        else:
            self._estimated(charge, meter)
        return 499

    def _stream_that_is_run_again(self, charge: Charge, reply: Usage, chunks: int) -> int:
        self._answer(charge, CHUNK * chunks + usage_frame(reply))
        self.rerun += reply.input + reply.output
        return self._stream(charge, reply, chunks)

    def _stream_that_is_run_again_and_left(self, charge: Charge, reply: Usage, chunks: int) -> int:
        self._answer(charge, CHUNK * chunks + usage_frame(reply))
        self.rerun += reply.input + reply.output
        return self._stream_that_the_client_leaves(charge, reply, chunks)

    def _stream_that_an_engine_refuses(self, charge: Charge, reply: Usage, chunks: int) -> int:
        charge.attempt("p", False).status = 503
        self.charged.append(Usage())
        return 503

    def _whole(self, charge: Charge, reply: Usage, chunks: int) -> int:
        meter = charge.attempt("p", False)
        meter.status = 200
        meter.whole(usage_frame(reply).removeprefix(b"data: "))
        self.charged.append(reply)
        return 200

    def _whole_that_the_client_leaves(self, charge: Charge, reply: Usage, chunks: int) -> int:
        charge.attempt("p", False)
        reserved = (charge.reservation.cost - charge.input_tokens) / TokenWeights().output
        self.charged.append(Usage(charge.input_tokens, 0, round(reserved), told=False))
        return 499

    def _whole_that_breaks_off(self, charge: Charge, reply: Usage, chunks: int) -> int:
        charge.attempt("p", False).status = 200
        self.charged.append(Usage())
        return 502

    def _answer(self, charge: Charge, stream: bytes) -> Meter:
        meter = charge.attempt("p", True)
        meter.status = 200
        Line([meter]).feed(stream)
        return meter

    def _estimated(self, charge: Charge, meter: Meter) -> None:
        output = charge.estimates.written(charge.group, charge.size, meter)
        assert charge.size.max_output is not None
        assert output <= charge.size.max_output, "no more than the request allows"
        assert output <= 32 * meter.chunks
        self.charged.append(Usage(charge.input_tokens, 0, output, told=False))


ENDS = [name[1:].replace("_", " ") for name in vars(Site) if name.startswith(("_stream", "_whole"))]
REQUEST = st.tuples(
    st.integers(0, REPLICAS - 1),
    st.sampled_from(ENDS),
    st.builds(Usage, st.integers(1, 3000), st.just(0), st.integers(0, 3000)),
    st.integers(0, 120),
)
FATE = st.sampled_from(["nothing", "report", "report is lost", "answer is lost", "another ledger", "full disk"])


@given(st.lists(st.tuples(REQUEST, FATE), max_size=25))
@settings(max_examples=60, deadline=None)
async def test_what_was_charged_is_what_is_booked_spent_and_gone_from_the_bucket(
    steps: list[tuple[tuple[int, str, Usage, int], str]],
) -> None:
    site, died = Site(), False
    for accounts in site.accounts:
        await accounts.sync()
    for request, fate in steps:
        await site.request(*request)
        if fate == "another ledger":
            site.link.ledger, died = site.new_ledger(), True
        site.link.is_dead, site.link.loses = fate == "report is lost", fate == "answer is lost"
        site.book.is_full = fate == "full disk"
        if fate != "nothing":
            await site.accounts[request[0]].sync()
        site.link.is_dead = site.link.loses = site.book.is_full = False
    for accounts in site.accounts:
        await accounts.end()
    cost = sum(usage.cost(TokenWeights()) for usage in site.charged)
    assert site.book.spending(["tenant:t"], month_of(datetime.now(UTC)))["tenant:t"] == cost
    if site.charged:
        (row,) = site.book.usage([])
        assert row["requests"] == len(site.charged)
        assert row["input"] == sum(usage.input for usage in site.charged)
        assert row["output"] == sum(usage.output for usage in site.charged)
        assert row["rerun"] == site.rerun
        assert row["unsettled"] == sum(not usage.told for usage in site.charged)
    assert died or abs(await left(site) - (BURST - cost)) <= 1


async def left(site: Site) -> float:
    """Returns what another replica sees in the bucket."""
    accounts, headers = site.new_replica(), list[tuple[bytes, bytes]]()
    charge = await accounts.reserve(PRINCIPAL, "m", "plain", RequestSize(100, max_output=1), headers)
    return float(dict(headers)[b"x-ratelimit-remaining-tokens"]) + charge.reservation.cost
