"""Whole answers: judged as streams are, replaced entirely by a rerun, untouched when they are clean."""

import pytest
from support.guard_harness import answer_of, json_request, tools_request

from serve.config.guard import GuardConfig
from serve.engine.sim import SimSettings
from serve.guard.core import GuardState, Outcome, WholeGuard, check_answer

CLEAN = SimSettings(num_speculative_tokens=2, thinking=True)


@pytest.mark.parametrize("body", [tools_request(1), tools_request(2, tool_choice="none"), json_request(3)])
def test_a_clean_answer_keeps_all_its_fields(body: dict[str, object]) -> None:
    answer = answer_of(body, CLEAN)
    guard = WholeGuard(GuardConfig(), body)
    assert guard.check(answer) == answer
    assert guard.guard.outcome is Outcome.CLEAN


@pytest.mark.parametrize("fault", ["truncated_string", "wrong_name", "merged_calls", "marker_leak", "swallowed_call"])
def test_a_broken_answer_is_replaced_by_the_next_pools_and_usage_is_the_sum(fault: str) -> None:
    body = tools_request(3, tool_choice="required")
    bad, good = answer_of(body, SimSettings(faults={fault: 1.0})), answer_of(body, CLEAN)
    guard = WholeGuard(GuardConfig(), body)
    assert guard.check(bad) is None
    assert guard.guard.state is GuardState.RERUN
    guard.guard.restart("standard")
    final = guard.check(good)
    assert final is not None
    assert final["choices"] == good["choices"]
    assert final["usage"]["total_tokens"] == bad["usage"]["total_tokens"] + good["usage"]["total_tokens"]
    assert final["specgate"]["rerun"] == "standard"


def test_when_no_pool_is_right_the_client_gets_an_error_or_the_marked_original() -> None:
    body = tools_request(3)
    bad = answer_of(body, SimSettings(faults={"truncated_string": 1.0}))
    guard = WholeGuard(GuardConfig(reruns=0), body)
    assert guard.check(bad) is None
    assert guard.give_up()["error"]["code"] == "integrity_violation"
    guard = WholeGuard(GuardConfig(reruns=0, on_failure="unclean"), body)
    final = guard.check(bad)
    assert final is not None
    assert final["choices"] == bad["choices"]
    assert final["specgate"] == {"unclean": ["truncated"]}


def test_observing_returns_the_answer_itself() -> None:
    body = tools_request(3)
    bad = answer_of(body, SimSettings(faults={"truncated_string": 1.0}))
    guard = WholeGuard(GuardConfig(mode="observe"), body)
    assert guard.check(bad) is bad
    assert guard.guard.verdicts[0].outcome is Outcome.TRUNCATED


def test_an_answer_can_be_judged_alone() -> None:
    body = tools_request(3)
    verdict = check_answer(GuardConfig(), body, answer_of(body, SimSettings(faults={"wrong_name": 1.0})))
    assert verdict.outcome is Outcome.UNKNOWN_TOOL
    assert check_answer(GuardConfig(), body, answer_of(body, CLEAN)).good
    assert check_answer(GuardConfig(), body, {"choices": []}).outcome is Outcome.TRUNCATED
