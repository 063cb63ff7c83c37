"""Gateway replicas hear of each other's load, and of nobody who is gone."""

import asyncio
from collections import Counter
from typing import Any

from support.clock import ManualClock, settle

from policies import RequestFeatures, choose, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.errors import SharedStateError
from serve.load.learned import LoadReport, total
from serve.load.live_load import NULL_LOAD, LiveLoad
from serve.load.shared_load import Figures, LoadBoard, SharedLoad
from serve.routing.fair_queue import Asker, QueueReport
from serve.routing.pool import Endpoint, PoolReport
from serve.routing.remote_pool import RemotePool
from serve.shared.link import LocalLink
from serve.shared.report import Acknowledgement, Report

KEY = ("m", "p")
RED, BLUE = (1, "red"), (1, "blue")
NOTHING = LoadReport()


def running(requests: float) -> LoadReport:
    return LoadReport({KEY: (requests, 2 * requests)}, {KEY: ((1.0, 0.5),)}, {(*KEY, "plain"): (1, 10.0, 20.0)})


def given(costs: dict[tuple[int, str], float]) -> dict[tuple[str, str], PoolReport]:
    return {KEY: PoolReport(QueueReport(costs))}


class Site:
    """Replicas that report to one board when they are told to."""

    def __init__(self) -> None:
        self.clock = ManualClock()
        self._board = LoadBoard(self.clock)
        self._numbers: Counter[str] = Counter()

    async def report(
        self, replica: str, load: LoadReport = NOTHING, pools: dict[tuple[str, str], PoolReport] | None = None
    ) -> Figures:
        self._numbers[replica] += 1
        return await self.again(replica, load, pools)

    async def again(
        self, replica: str, load: LoadReport = NOTHING, pools: dict[tuple[str, str], PoolReport] | None = None
    ) -> Figures:
        """Sends the last report once more."""
        answer = await self._board.take(Report(replica, self._numbers[replica], Figures(load, pools or {})))
        assert isinstance(answer, Acknowledgement)
        return answer.state


async def test_a_replica_hears_of_all_others_but_not_of_itself() -> None:
    site = Site()
    assert await site.report("a", running(3)) == Figures()
    assert (await site.report("b", running(4))).load.running == {KEY: (3, 6)}
    load = (await site.report("c", running(5))).load
    assert load.running == {KEY: (7, 14)}
    assert load.acceptance == {(*KEY, "plain"): (2, 20.0, 40.0)}
    assert load.steps[KEY][0] == (2.0, 1.0)


async def test_a_replica_that_is_gone_is_forgotten() -> None:
    site = Site()
    await site.report("a", running(3))
    site.clock.now_s = 10.0
    assert await site.report("b", running(4), given({RED: 1.0})) == Figures(pools={KEY: PoolReport()})
    assert await site.report("a", running(3)) == Figures(running(4)), "what was given while it was away is not for it"


async def test_a_replica_that_comes_back_does_not_hear_what_was_given_before_it_went() -> None:
    site = Site()
    await site.report("a")
    await site.report("b", pools=given({RED: 5.0}))
    for site.clock.now_s in (4.0, 8.0):
        await site.report("b", pools=given({}))
    assert (await site.report("a", pools=given({}))).pools == given({})


async def test_what_a_replica_gave_is_heard_by_each_other_once() -> None:
    site = Site()
    for name in "abc":
        assert await site.report(name) == Figures()
    await site.report("a", pools=given({RED: 1.0, BLUE: 0.0}))
    await site.report("a", pools=given({RED: 2.0}))
    await site.report("b", pools=given({RED: 4.0}))
    for send in (site.report, site.again):
        assert (await send("c", pools=given({}))).pools == given({RED: 7.0, BLUE: 0.0}), "the first answer got lost"
    assert (await site.report("c", pools=given({}))).pools == given({})
    assert (await site.report("a", pools=given({}))).pools == given({RED: 4.0})
    assert (await site.report("b", pools=given({}))).pools == given({}), "it had heard of the first replica before"


async def test_what_engines_were_sent_is_heard_by_each_other_replica_once() -> None:
    site = Site()
    for name in "abc":
        await site.report(name)
    one, two = ("http://one", b"1111"), ("http://two", b"2222")
    await site.report("a", pools={KEY: PoolReport(sent=(one,))})
    await site.report("b", pools={KEY: PoolReport(sent=(two,))})
    assert (await site.report("c", pools={KEY: PoolReport()})).pools[KEY].sent == (one, two)
    assert (await site.report("c", pools={KEY: PoolReport()})).pools[KEY].sent == ()
    assert (await site.report("a", pools={KEY: PoolReport()})).pools[KEY].sent == (two,)


async def test_what_engines_have_to_do_for_others_is_told_as_it_is_now() -> None:
    site = Site()
    await site.report("a", pools={KEY: PoolReport(doing={"http://one": 9.0})})
    await site.report("a", pools={KEY: PoolReport(doing={"http://one": 1.0, "http://two": 2.0})})
    await site.report("b", pools={KEY: PoolReport(doing={"http://one": 4.0})})
    for _ in range(2):
        assert (await site.report("c", pools={KEY: PoolReport()})).pools[KEY].doing == {
            "http://one": 5.0,
            "http://two": 2.0,
        }
    site.clock.now_s = 10.0
    assert (await site.report("c", pools={KEY: PoolReport()})).pools[KEY].doing == {}


async def test_what_others_want_is_told_as_it_is_now() -> None:
    site = Site()
    await site.report("a", pools={KEY: PoolReport(QueueReport(wanted=(9, 9, 9)))})
    await site.report("a", pools={KEY: PoolReport(QueueReport(wanted=(1, 2, 3)))})
    await site.report("b", pools={KEY: PoolReport(QueueReport(wanted=(10, 20, 30)))})
    for _ in range(2):
        assert (await site.report("c", pools={KEY: PoolReport()})).pools[KEY].queue.wanted == (11, 22, 33)


def test_reports_add_up_in_any_order() -> None:
    reports = [running(1), running(2), LoadReport()]
    assert total(reports).running == total(reversed(reports)).running == {KEY: (3, 6)}


def live_load() -> tuple[LiveLoad, Any]:
    facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "eagle3", "num_speculative_tokens": 3}
    remote = {"kind": "remote", "url": "http://unused", "facts": {"method": "none"}}
    pools = {"speculative": {**remote, "facts": facts, "proven": ["any"]}, "standard": remote}
    config = GatewayConfig.parse(
        {"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}}, "policy": {"load": "route"}}
    )
    policy = compile_for(config)
    return LiveLoad(config, policy, 2), decide(policy, RequestFeatures("m"), None)


def test_what_others_run_counts_in_the_ranking() -> None:
    load, decision = live_load()
    features = RequestFeatures("m")
    assert choose(decision, order=load.order(decision, features, 400)).pool == "speculative"
    load.merge(LoadReport({("m", "speculative"): (200.0, 500.0), ("m", "standard"): (0.0, 0.0)}))
    assert choose(decision, order=load.order(decision, features, 400)).pool == "standard"
    load.merge(None)
    assert choose(decision, order=load.order(decision, features, 400)).pool == "speculative"


def test_requests_of_this_replica_are_reported_and_counted_once() -> None:
    load, decision = live_load()
    sent = load.begin(decision, RequestFeatures("m"), decision.candidates[0], 400)
    assert load.report().running["m", "speculative"][0] == 1
    load.merge(LoadReport())
    load.check()
    assert load.loads["m", "speculative"].per_engine == 1
    load.merge(None)
    load.check()
    assert load.loads["m", "speculative"].per_engine == 2  # its share is half of all
    sent.end()


async def test_a_board_that_cant_be_reached_leaves_the_replica_to_its_share() -> None:
    load, _ = live_load()
    load.merge(running(3))

    class Gone:
        async def call(self, *_: Any) -> Any:
            raise SharedStateError("gone", retry_after_s=1.0)

    await SharedLoad(load, {}, Gone()).sync()
    load.check()
    load.loads["m", "speculative"].begin(2.0)
    assert load.loads["m", "speculative"].per_engine == 2


async def test_queues_hear_what_other_replicas_gave_their_tenants() -> None:
    board = LocalLink(LoadBoard(ManualClock()))
    pools = [RemotePool(Endpoint("http://unused", None), {}, 1) for _ in range(2)]
    shared = [SharedLoad(NULL_LOAD, {KEY: pool}, board) for pool in pools]
    order: list[str] = []

    async def ask(tenant: str) -> None:
        async with pools[1].reserve(asker=Asker(tenant, cost=10)):
            order.append(tenant)

    for each in shared:
        await each.sync()
    async with pools[1].reserve(asker=Asker("red", cost=10)):
        tasks = [asyncio.create_task(ask(tenant)) for tenant in ("red", "blue")]
        await settle()
        async with pools[0].reserve(asker=Asker("red", cost=10)):
            for each in shared:
                await each.sync()
    await asyncio.gather(*tasks)
    assert order == ["blue", "red"]
