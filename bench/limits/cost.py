"""What limits and usage cost a request, in CPU time of this process."""

from __future__ import annotations

import time
from collections.abc import Callable
from statistics import median

from opentelemetry.trace import INVALID_SPAN

from policies import RequestFeatures
from serve.access.principal import Principal, Tenant
from serve.config.rate_limits import Limits, RateLimitsConfig
from serve.http1.asgi import Sink
from serve.limits.accounts import Accounts
from serve.limits.actor import connect
from serve.limits.answer_meter import Meter
from serve.limits.estimate import size_of
from serve.request.completion import parse
from serve.stream.ending import End
from serve.stream.line import Line

_BODY = b'{"model":"m","max_tokens":16,"messages":[{"role":"user","content":"hello"}]}'
_ANSWER = (
    b'{"id":"c","choices":[{"message":{"content":"'
    + b"word " * 40
    + b'"}}],"usage":{"prompt_tokens":9,"completion_tokens":40}}'
)
_CHUNK = b'data: {"id":"c","object":"chat.completion.chunk","choices":[{"index":0,"delta":{"content":"word "}}]}\n\n'
_ROUNDS = 7


async def request_us(limits: Limits | None, requests: int = 5_000) -> float:
    """Returns the microseconds of one whole answer: size, reservation, headers, usage and settlement.

    Args:
        limits: Of the tenant, its key and its model, all three; None for usage alone.
        requests: For each of several rounds, of which the median counts.
    """
    accounts = Accounts(RateLimitsConfig(enabled=True), connect(None, None))
    await accounts.sync()
    of_model = {} if limits is None else {"m": limits}
    own = limits or Limits()
    principal = Principal("key", Tenant("tenant", limits=own, model_limits=of_model), frozenset({"infer"}), limits=own)
    request = parse(_BODY)
    features = RequestFeatures(model="m")
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        await accounts.sync()
        begun_s = time.process_time()
        for _ in range(requests):
            charge = await accounts.reserve(principal, "m", "plain", size_of(_BODY, request, features), [])
            meter = charge.attempt("p", False)
            meter.status = 200
            meter.whole(_ANSWER)
            charge.settle(200, INVALID_SPAN)
        rounds.append((time.process_time() - begun_s) / requests * 1e6)
    return median(rounds)


def chunk_us(chunks: int = 50_000) -> float:
    """Returns the microseconds that a meter adds to one chunk of a stream."""
    return _each_us(_reader(Meter("p", False)), chunks) - _each_us(_reader(None), chunks)


def _reader(meter: Meter | None) -> Sink:
    """Returns what takes the chunks of a plain stream, which nobody wants to have."""
    line = Line([End()] if meter is None else [meter, End()])

    def look(part: bytes) -> None:
        line.feed(part)

    return line.sink(lambda _: None, look)


def _each_us(act: Callable[[bytes], object], times: int) -> float:
    rounds: list[float] = []
    for _ in range(_ROUNDS):
        begun_s = time.process_time()
        for _ in range(times):
            act(_CHUNK)
        rounds.append((time.process_time() - begun_s) / times * 1e6)
    return median(rounds)
