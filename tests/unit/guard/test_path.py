from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import Candidate
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.guard.path import as_evidence, rerun_order

FAST = Candidate("speculative", opt_out=False, speculative=True)
TWIN = Candidate("twin", opt_out=False, speculative=True)
OPT_OUT = Candidate("speculative", opt_out=True, speculative=False)
STANDARD = Candidate("standard", opt_out=False, speculative=False)
ALL = [FAST, TWIN, OPT_OUT, STANDARD]


def test_a_rerun_goes_to_another_pool_without_speculation_first_and_back_to_its_own_last() -> None:
    assert rerun_order(ALL, [FAST]) == [STANDARD, OPT_OUT, TWIN, FAST]


def test_a_second_rerun_goes_where_none_has_been() -> None:
    assert rerun_order(ALL, [FAST, STANDARD]) == [OPT_OUT, TWIN, STANDARD, FAST]


def test_where_there_is_no_other_it_runs_again_where_it_was() -> None:
    assert rerun_order([STANDARD], [STANDARD]) == [STANDARD]


OUTCOMES = [outcome for outcome in Outcome if outcome not in (Outcome.RERUN, Outcome.GUARD_ERROR)]
BAD = [outcome for outcome in OUTCOMES if outcome is not Outcome.CLEAN]
CLEAN = Verdict(Outcome.CLEAN)


def counted(*verdicts: Verdict, compared: bool = True) -> list[bool]:
    return [verdict.counts for verdict in as_evidence(verdicts, compared=compared)]


@given(st.sampled_from(BAD), st.integers(2, 6), st.data())
def test_what_fails_alike_everywhere_is_no_evidence_whatever_it_is(outcome: Outcome, times: int, data: Any) -> None:
    details = st.lists(st.text(max_size=3), max_size=2)
    verdicts = [
        Verdict(outcome, tuple(Defect(outcome, Severity.HARD, detail) for detail in data.draw(details)))
        for _ in range(times)
    ]
    assert not any(counted(*verdicts))


@given(st.lists(st.sampled_from(BAD), max_size=4))
def test_a_failure_that_another_attempt_did_not_have_is_evidence(failures: list[Outcome]) -> None:
    assert all(counted(*map(Verdict, failures), CLEAN))


@given(st.lists(st.sampled_from(OUTCOMES), max_size=4))
def test_what_was_compared_with_nothing_because_the_client_left_or_no_pool_answered_is_none(
    outcomes: list[Outcome],
) -> None:
    assert not any(counted(*map(Verdict, outcomes), compared=False))


@given(st.lists(st.sampled_from(OUTCOMES), max_size=4), st.booleans(), st.data())
def test_nothing_becomes_evidence_that_was_none(outcomes: list[Outcome], compared: bool, data: Any) -> None:
    verdicts = [Verdict(outcome, (), data.draw(st.booleans())) for outcome in outcomes]
    for verdict, counts in zip(verdicts, counted(*verdicts, compared=compared), strict=True):
        assert verdict.counts or not counts


def test_a_schema_may_fit_nothing_so_a_mismatch_alone_is_none_and_one_that_another_could_not_judge_neither() -> None:
    mismatch, unjudged = Verdict(Outcome.SCHEMA_MISMATCH), Verdict(Outcome.UNJUDGED, counts=False)
    assert counted(mismatch) == [False]
    assert counted(mismatch, unjudged) == [False, False]
    assert counted(Verdict(Outcome.TRUNCATED)) == counted(CLEAN) == counted(Verdict(Outcome.RESCUED)) == [True]


def test_a_rerun_that_only_differs_from_what_went_out_excuses_no_pool() -> None:
    assert counted(Verdict(Outcome.FAILED), Verdict(Outcome.FAILED, counts=False)) == [True, False]
