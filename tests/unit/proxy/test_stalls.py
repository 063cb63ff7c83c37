"""A stream is taken from an engine whose silence its own pace makes improbable, and never from too many."""

import asyncio
from types import SimpleNamespace
from typing import Any, cast

import pytest
from support.clock import LoopClock

from serve.config.gateway import GatewayConfig
from serve.proxy.attempts import Attempt
from serve.proxy.routed_request import RoutedRequest
from serve.proxy.stalls import Stalls
from serve.telemetry.metrics import Metrics

pytestmark = pytest.mark.asyncio(loop_scope="function")


class Stream:
    """A response whose engine sends something when the test says so."""

    is_stream = True

    def __init__(self) -> None:
        self.left = self.given_up = False
        self.send()

    @property
    def silence_s(self) -> float:
        return 0.0 if self.left else asyncio.get_running_loop().time() - self._last_s

    def send(self) -> None:
        self._last_s = asyncio.get_running_loop().time()

    def give_up(self) -> None:
        self.left = self.given_up = True


def stalls(*, has_other: bool = True, **guard: Any) -> tuple[Stalls, Metrics]:
    pool = {"kind": "remote", "url": "http://127.0.0.1:1", "facts": {"engine": "vllm"}}
    config = GatewayConfig.parse({"models": {"m": {"family": "sim", "guard": guard, "pools": {"standard": pool}}}})
    metrics = Metrics()
    return Stalls(config.models, lambda _: has_other, metrics), metrics


def watch(each: Stalls, stream: Stream) -> None:
    request = SimpleNamespace(decision=SimpleNamespace(model="m"), guarded=True)
    each.watch(cast(RoutedRequest, request), cast(Attempt, SimpleNamespace(response=stream, ids=[])))


async def test_a_silent_engine_is_given_up_and_a_busy_one_is_not(clock: LoopClock) -> None:
    watched, _ = stalls(stall_s=20)
    silent, busy, done = Stream(), Stream(), Stream()
    for stream in (silent, busy, done):
        watch(watched, stream)
    done.left = True
    for _ in range(19):
        await clock.advance(1)
        busy.send()
    assert not silent.given_up
    await clock.advance(2)
    assert silent.given_up
    assert not busy.given_up
    assert not done.given_up


async def test_a_slow_engine_has_ten_times_its_own_silence(clock: LoopClock) -> None:
    watched, _ = stalls(stall_s=5)
    slow = Stream()
    watch(watched, slow)
    for _ in range(4):
        await clock.advance(1)
    slow.send()
    for _ in range(29):
        await clock.advance(1)
    assert not slow.given_up
    for _ in range(12):
        await clock.advance(1)
    assert slow.given_up


async def test_no_more_streams_are_given_up_than_their_share(clock: LoopClock) -> None:
    watched, metrics = stalls(stall_s=5, stall_share=0.1)
    streams = [Stream() for _ in range(20)]
    for stream in streams:
        watch(watched, stream)
    for _ in range(7):
        await clock.advance(1)
    assert sum(stream.given_up for stream in streams) == 3
    assert b'specgate_stalled_streams_total{model="m",outcome="kept"} 17.0' in metrics.exposition()


@pytest.mark.parametrize("guard", [{"stall_s": 0}, {"mode": "off"}, {"reruns": 0}, {"has_other": False}])
async def test_nothing_is_given_up_with_which_nobody_goes_on(clock: LoopClock, guard: dict[str, Any]) -> None:
    watched, _ = stalls(**guard)
    stream = Stream()
    watch(watched, stream)
    await clock.advance(100)
    assert not stream.given_up
