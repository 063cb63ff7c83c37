"""One gateway replica's view of the load: what is counted ends, and what is forbidden never comes."""

import json
import logging
import time
from collections.abc import Callable
from dataclasses import replace
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.clock import ManualClock

from policies import Decision, Policy, RequestFeatures, choose, decide
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.load.live_load import LiveLoad, Sent, SpecReport, spec_report

SEATS = 256
TOOLS: dict[str, Any] = {"tools": 1, "tool_choice": "auto"}


class Response:
    """A response of which only the end matters."""

    def __init__(self, steps: int, accepted: int) -> None:
        found = {"num_spec_steps": steps, "num_accepted_draft_tokens": accepted, "num_draft_tokens": 3 * steps}
        self.last = (json.dumps({"metrics": {"speculative_decoding": found}}, separators=(",", ":")).encode(),)


class Rig:
    """A model with a speculative and a standard pool."""

    def __init__(
        self, load: str = "route", gateways: int = 1, clock: Callable[[], float] = time.monotonic, **policy: Any
    ) -> None:
        facts = {"engine": "vllm", "engine_version": "0.32.0", "method": "eagle3", "num_speculative_tokens": 3,
                 "drafter": "d", "tool_parser": "hermes", "hybrid": False, "prefix_caching": False}  # fmt: skip
        remote = {"kind": "remote", "url": "http://unused", "max_ongoing_requests": SEATS}
        pools = {"speculative": {**remote, "facts": facts}, "standard": {**remote, "facts": {"method": "none"}}}
        model = {"family": "qwen3", "grammar": "hermes", "pools": pools}
        config = GatewayConfig.parse({"models": {"m": model}, "policy": {"load": load, **policy}})
        self.policy = compile_for(config)
        self.load = LiveLoad(config, self.policy, gateways, clock)

    def decided(self, **features: Any) -> tuple[Decision, RequestFeatures]:
        asked = RequestFeatures("m", **features)
        return decide(self.policy, asked, asked.preference), asked

    def ordered(self, size_bytes: int = 400, **features: Any) -> Decision:
        decision, asked = self.decided(**features)
        return choose(decision, self.load.order(decision, asked, size_bytes))

    def begin(self, count: int, pool: str = "speculative", **features: Any) -> list[Sent]:
        decision, asked = self.decided(**features)
        candidate = next(each for each in decision.candidates if each.pool == pool)
        return [self.load.begin(decision, asked, candidate, 400) for _ in range(count)]


def test_without_load_nothing_moves() -> None:
    rig = Rig()
    assert rig.ordered() is rig.decided()[0]
    assert rig.load.moves == {}


def test_prose_leaves_a_busy_drafter_and_says_why() -> None:
    rig = Rig()
    rig.begin(150)
    decision = rig.ordered()
    assert [each.pool for each in decision.candidates] == ["standard", "speculative"]
    assert (decision.pool, decision.speculative) == ("standard", False)
    (reason,) = [each for each in decision.reasons if each.advisory == "load"]
    assert "standard before speculative" in reason.summary
    assert decision.evidence == "none"
    assert rig.load.moves == {("m", "speculative", "standard"): 1}


def test_observing_counts_and_changes_nothing() -> None:
    rig = Rig("observe")
    rig.begin(150)
    assert rig.ordered() is rig.decided()[0]
    assert rig.load.moves == {("m", "speculative", "standard"): 1}


def test_a_wish_for_speculation_is_not_overruled_by_load() -> None:
    rig = Rig()
    rig.begin(150)
    assert rig.ordered(preference=True).pool == "speculative"


def test_each_gateway_replica_counts_for_all_of_them() -> None:
    alone, one_of_four = Rig(), Rig(gateways=4)
    alone.begin(20)
    one_of_four.begin(20)
    assert alone.ordered().pool == "speculative"
    assert one_of_four.ordered().pool == "standard"


def test_more_engines_bear_more() -> None:
    rig = Rig()
    rig.begin(150)
    rig.load.set_engines(("m", "speculative"), 8)
    assert rig.ordered().pool == "speculative"
    rig.load.set_engines(("m", "speculative"), 0)  # not known any more
    assert rig.ordered().pool == "speculative"


def test_requests_that_end_or_go_elsewhere_do_not_count_any_more() -> None:
    rig = Rig()
    sent = rig.begin(150)
    standard = rig.decided()[0].candidates[1]
    for each in sent[:100]:
        each.posted(standard)
    assert [rig.load.loads["m", pool].requests for pool in ("speculative", "standard")] == [50, 100]
    for each in sent:
        each.end()
    assert [rig.load.loads["m", pool].requests for pool in ("speculative", "standard")] == [0, 0]
    assert rig.ordered() is rig.decided()[0]


def test_what_drafters_accept_is_learned_by_pool_and_class() -> None:
    rig = Rig()
    for _ in range(300):
        (sent,) = rig.begin(1)
        sent.response = Response(100, 20)
        sent.end()
    learned = {each[:3]: each[3] for each in rig.load.learned()}
    assert learned["m", "speculative", "plain"].length == pytest.approx(1.2, abs=0.01)
    assert rig.ordered().pool == "standard", "a drafter that accepts next to nothing pays at no load"


def test_what_was_learned_is_told_with_its_age() -> None:
    clock = ManualClock()
    rig = Rig(clock=clock)
    ages = []
    for wait_s in (0.0, 90.0, 90.0):
        clock.now_s += wait_s
        rig.load.check()
        if wait_s == 0.0:
            (sent,) = rig.begin(1)
            clock.now_s += 1.0
            sent.response = Response(100, 20)
            sent.end()
        ages += [row["idle_s"] for row in rig.load.view()]
    assert ages == [0, 91, 181]


def test_a_collapse_is_told_once(caplog: pytest.LogCaptureFixture) -> None:
    rig = Rig()
    for _ in range(100):
        (sent,) = rig.begin(1)
        sent.response = Response(100, 5)
        sent.end()
    with caplog.at_level(logging.WARNING, "ray.serve.specgate.load"):
        rig.load.check()
        rig.load.check()
    (record,) = caplog.records
    assert "m/speculative: drafts for plain are accepted less than half" in record.getMessage()


def test_a_conversation_stays_where_its_long_prompt_is_cached() -> None:
    rig = Rig()
    rig.begin(150)
    rig.begin(30, "standard")
    decision, asked = rig.decided(conversation_key="c")
    rig.load.begin(decision, asked, decision.candidates[0], 400_000)
    assert rig.ordered(400_400, conversation_key="c").pool == "speculative"
    assert rig.ordered(400, conversation_key="other").pool == "standard"


def test_memory_is_bounded_whatever_clients_send() -> None:
    rig = Rig()
    for number in range(9000):
        rig.begin(1, conversation_key=str(number))[0].end()
    assert len(rig.load._homes) == 8192


def test_explaining_a_request_does_not_count_it() -> None:
    rig = Rig()
    rig.begin(150)
    decision, asked = rig.decided()
    rows = rig.load.figures(decision, asked, 400)
    assert [(row["pool"], row["requests_per_engine"]) for row in rows] == [("speculative", 150), ("standard", 0)]
    assert rows[1]["value"] > rows[0]["value"]
    assert choose(decision, order=rig.load.order(decision, asked, 400, count=False)).pool == "standard"
    assert rig.load.moves == {}


def test_another_policy_counts_at_once() -> None:
    rig, other = Rig(), Rig(overrides=[{"action": "forbid", "pool": "standard", "reason": "r"}])
    rig.begin(150)
    assert rig.ordered().pool == "standard"
    rig.load.adopt(other.policy)
    decision, asked = other.decided()
    assert choose(decision, order=rig.load.order(decision, asked, 400)).pool == "speculative"


def with_drafts(policy: Policy, drafts: int | None) -> Policy:
    facts = [replace(each, num_speculative_tokens=drafts) if each.speculative else each for each in policy.facts]
    return replace(policy, facts=tuple(facts))


def tokens_per_step(rig: Rig) -> dict[str, float]:
    decision, asked = rig.decided(**TOOLS)
    return {row["pool"]: row["tokens_per_step"] for row in rig.load.figures(decision, asked, 400)}


@pytest.mark.parametrize("first", [None, 3, 16])
def test_another_draft_length_counts_for_what_is_expected_of_classes_that_are_known(first: int | None) -> None:
    rig, fresh = Rig(), Rig()
    rig.load.adopt(with_drafts(rig.policy, first))
    before = tokens_per_step(rig)
    for each in (rig, fresh):
        each.load.adopt(with_drafts(each.policy, 7))
    assert before != tokens_per_step(rig) == tokens_per_step(fresh)
    assert tokens_per_step(rig)["standard"] == 1.0
    for _, _, request_class, known in rig.load.learned():
        if request_class:
            known.learn(100, 420)
            assert known.answers == 1, "more than were drafted before"


def test_the_figures_of_a_reason_are_at_most_as_old_as_the_last_check() -> None:
    rig = Rig()
    rig.begin(150)
    before = rig.ordered()
    assert rig.ordered() is before
    rig.begin(50)
    assert rig.ordered() is before
    rig.load.check()
    assert rig.ordered().reasons != before.reasons
    assert rig.load.moves == {("m", "speculative", "standard"): 4}


REPORT = {
    "mean_acceptance_length": 2.5, "draft_acceptance_rate": 0.5, "acceptance_histogram": [1, 2, 3, 4],
    "num_spec_steps": 40, "num_accepted_draft_tokens": 60, "num_draft_tokens": 120, "num_spec_tokens": 3,
}  # fmt: skip


def frame(**members: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": {"total_tokens": 9}, **members}).encode() + b"\n\n"


@given(cuts=st.lists(st.integers(0, 600), max_size=3))
def test_it_is_found_however_a_stream_is_cut(cuts: list[int]) -> None:
    data = frame(metrics={"speculative_decoding": REPORT}) + b"data: [DONE]\n\n"
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(places)]
    assert spec_report(parts) == SpecReport(40, 60)


def test_it_is_found_in_a_whole_response_with_space_between_its_members() -> None:
    body = json.dumps({"choices": [{}], "metrics": {"speculative_decoding": REPORT}, "x": 1}, indent=1).encode()
    assert spec_report([body]) == SpecReport(40, 60)


def test_a_model_that_writes_such_a_member_is_not_believed() -> None:
    text = json.dumps({"speculative_decoding": {**REPORT, "num_accepted_draft_tokens": 0}})
    assert spec_report([json.dumps({"choices": [{"message": {"content": text}}]}).encode()]) is None


@pytest.mark.parametrize(
    "report",
    [
        {}, [], None, "x", {**REPORT, "num_spec_steps": 0}, {**REPORT, "num_accepted_draft_tokens": -1},
        {**REPORT, "num_accepted_draft_tokens": 121}, {**REPORT, "num_draft_tokens": "many"},
        {**REPORT, "num_spec_steps": True}, {**REPORT, "num_spec_steps": -40}, {**REPORT, "num_spec_steps": 40.0},
        {**REPORT, "num_spec_steps": None}, {**REPORT, "num_spec_steps": float("nan")},
        {**REPORT, "num_spec_steps": 10**400}, {**REPORT, "num_draft_tokens": float("inf")},
        {**REPORT, "num_accepted_draft_tokens": 10**400, "num_draft_tokens": 10**400},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_report(report: Any) -> None:
    assert spec_report([frame(metrics={"speculative_decoding": report})]) is None


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_are_an_error(parts: list[bytes]) -> None:
    assert spec_report(parts) is None
    spec_report([b'{"speculative_decoding":', *parts])


def test_an_engine_that_nests_without_end_reports_nothing() -> None:
    assert spec_report([b'{"speculative_decoding":' + b"[" * 100_000]) is None
    assert spec_report([b'{"speculative_decoding":' + b'{"a":' * 100_000]) is None
