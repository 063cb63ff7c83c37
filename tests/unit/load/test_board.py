"""Gateway replicas hear of each other's load, and of nobody who is gone."""

import asyncio
from typing import Any

import pytest
from support.clock import settle

from policies import RequestFeatures, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.errors import SharedStateError
from serve.load.board import LoadBoard, SharedLoad
from serve.load.live_load import LiveLoad
from serve.load.report import LoadReport, total
from serve.routing.class_queue import Asker
from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import QueueReport
from serve.routing.remote_pool import RemotePool

KEY = ("m", "p")
RED, BLUE = (1, "red"), (1, "blue")


def running(requests: float) -> LoadReport:
    return LoadReport({KEY: (requests, 2 * requests)}, {KEY: ((1.0, 0.5),)}, {(*KEY, "plain"): (1, 10.0, 20.0)})


def given(costs: dict[tuple[int, str], float]) -> dict[tuple[str, str], QueueReport]:
    return {KEY: QueueReport(costs)}


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_replica_hears_of_all_others_but_not_of_itself() -> None:
    board = LoadBoard(Clock())
    assert board.sync("a", running(3), {}) == (LoadReport(), {})
    assert board.sync("b", running(4), {})[0].running == {KEY: (3, 6)}
    heard, _ = board.sync("c", running(5), {})
    assert heard.running == {KEY: (7, 14)}
    assert heard.acceptance == {(*KEY, "plain"): (2, 20.0, 40.0)}
    assert heard.steps[KEY][0] == (2.0, 1.0)


def test_a_replica_that_is_gone_is_forgotten() -> None:
    clock = Clock()
    board = LoadBoard(clock)
    board.sync("a", running(3), {})
    clock.now_s = 10.0
    assert board.sync("b", running(4), given({RED: 1.0})) == (LoadReport(), {KEY: QueueReport()})
    assert board.sync("a", running(3), {}) == (running(4), {}), "what was given while it was away is not for it"


def test_a_replica_that_comes_back_does_not_hear_what_was_given_before_it_went() -> None:
    clock = Clock()
    board = LoadBoard(clock)
    board.sync("a", LoadReport(), {})
    board.sync("b", LoadReport(), given({RED: 5.0}))
    for clock.now_s in (4.0, 8.0):
        board.sync("b", LoadReport(), given({}))
    assert board.sync("a", LoadReport(), given({}))[1] == given({})


def test_what_a_replica_gave_is_heard_by_each_other_once() -> None:
    board = LoadBoard(Clock())
    for name in "abc":
        assert board.sync(name, LoadReport(), {}) == (LoadReport(), {})
    board.sync("a", LoadReport(), given({RED: 1.0, BLUE: 0.0}))
    board.sync("a", LoadReport(), given({RED: 2.0}))
    board.sync("b", LoadReport(), given({RED: 4.0}))
    assert board.sync("c", LoadReport(), given({}))[1] == given({RED: 7.0, BLUE: 0.0})
    assert board.sync("c", LoadReport(), given({}))[1] == given({})
    assert board.sync("a", LoadReport(), given({}))[1] == given({RED: 4.0})
    assert board.sync("b", LoadReport(), given({}))[1] == given({}), "it had heard of the first replica before"


def test_what_others_want_is_told_as_it_is_now() -> None:
    board = LoadBoard(Clock())
    board.sync("a", LoadReport(), {KEY: QueueReport(wanted=(9, 9, 9))})
    board.sync("a", LoadReport(), {KEY: QueueReport(wanted=(1, 2, 3))})
    board.sync("b", LoadReport(), {KEY: QueueReport(wanted=(10, 20, 30))})
    for _ in range(2):
        assert board.sync("c", LoadReport(), {KEY: QueueReport()})[1][KEY].wanted == (11, 22, 33)


def test_reports_add_up_in_any_order() -> None:
    reports = [running(1), running(2), LoadReport()]
    assert total(reports).running == total(reversed(reports)).running == {KEY: (3, 6)}


def live_load() -> tuple[LiveLoad, Any]:
    facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "eagle3", "num_speculative_tokens": 3}
    remote = {"kind": "remote", "url": "http://unused"}
    pools = {"speculative": {**remote, "facts": facts, "proven": ["any"]}, "standard": remote}
    config = GatewayConfig.parse(
        {"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}}, "policy": {"load": "route"}}
    )
    policy = compile_for(config)
    return LiveLoad(config, policy, 2), decide(policy, RequestFeatures("m"), None)


def test_what_others_run_counts_in_the_ranking() -> None:
    load, decision = live_load()
    features = RequestFeatures("m")
    assert load.ordered(decision, features, 400).pool == "speculative"
    load.hear(LoadReport({("m", "speculative"): (200.0, 500.0), ("m", "standard"): (0.0, 0.0)}))
    assert load.ordered(decision, features, 400).pool == "standard"
    load.hear(None)
    assert load.ordered(decision, features, 400).pool == "speculative"


def test_requests_of_this_replica_are_reported_and_counted_once() -> None:
    load, decision = live_load()
    sent = load.begin(decision, RequestFeatures("m"), decision.candidates[0], 400)
    assert load.report().running["m", "speculative"][0] == 1
    load.hear(LoadReport())
    load.check()
    assert load.loads["m", "speculative"].per_engine == 1
    load.hear(None)
    load.check()
    assert load.loads["m", "speculative"].per_engine == 2  # its share is half of all
    sent.end()


async def test_a_board_that_cant_be_reached_leaves_the_replica_to_its_share(monkeypatch: pytest.MonkeyPatch) -> None:
    load, _ = live_load()
    load.hear(running(3))

    class Gone:
        def __init__(self, *_: Any) -> None: ...

        async def call(self, *_: Any) -> Any:
            raise SharedStateError("gone", None, None, 1.0)

    monkeypatch.setattr("serve.load.board.SharedActor", Gone)
    await SharedLoad(load, {}, "app").sync()
    load.check()
    load.loads["m", "speculative"].begin(2.0)
    assert load.loads["m", "speculative"].per_engine == 2


async def test_queues_hear_what_other_replicas_gave_their_tenants(monkeypatch: pytest.MonkeyPatch) -> None:
    board = LoadBoard(Clock())

    class Reached:
        def __init__(self, *_: Any) -> None: ...

        async def call(self, method: str, *arguments: Any) -> Any:
            return getattr(board, method)(*arguments)

    monkeypatch.setattr("serve.load.board.SharedActor", Reached)
    pools = [RemotePool(Endpoint("http://unused", None), {}, 1) for _ in range(2)]
    shared = [SharedLoad(None, {KEY: pool}, "app") for pool in pools]
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
