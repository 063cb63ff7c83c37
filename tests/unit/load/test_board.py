"""Gateway replicas hear of each other's load, and of nobody who is gone."""

from typing import Any

import pytest

from policies import RequestFeatures, decide
from serve.config.gateway import GatewayConfig
from serve.errors import SharedStateError
from serve.live_policy import compile_for
from serve.load.board import LoadBoard, SharedLoad
from serve.load.live_load import LiveLoad
from serve.load.report import LoadReport, total

KEY = ("m", "p")


def running(requests: float) -> LoadReport:
    return LoadReport({KEY: (requests, 2 * requests)}, {KEY: ((1.0, 0.5),)}, {(*KEY, "plain"): (1, 10.0, 20.0)})


class Clock:
    now_s = 0.0

    def __call__(self) -> float:
        return self.now_s


def test_a_replica_hears_of_all_others_but_not_of_itself() -> None:
    board = LoadBoard(Clock())
    assert board.sync("a", running(3)) == LoadReport()
    assert board.sync("b", running(4)).running == {KEY: (3, 6)}
    heard = board.sync("c", running(5))
    assert heard.running == {KEY: (7, 14)}
    assert heard.acceptance == {(*KEY, "plain"): (2, 20.0, 40.0)}
    assert heard.steps[KEY][0] == (2.0, 1.0)


def test_a_replica_that_is_gone_is_forgotten() -> None:
    clock = Clock()
    board = LoadBoard(clock)
    board.sync("a", running(3))
    clock.now_s = 10.0
    assert board.sync("b", running(4)) == LoadReport()


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
    await SharedLoad(load, "app").sync()
    load.check()
    load.loads["m", "speculative"].begin(2.0)
    assert load.loads["m", "speculative"].per_engine == 2
