"""What a trial finds: the same for either order of the two pools, and nothing where nobody can say."""

from collections.abc import Sequence
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import Candidate, Cell, Trial
from serve.guard.core import Defect, Outcome, Severity, Verdict
from serve.guard.finding import TrialFinding, finding_of

FAST = Candidate("speculative", opt_out=False, speculative=True)
SAFE = Candidate("standard", opt_out=False, speculative=False)
OTHER = Candidate("another", opt_out=False, speculative=False)
CELL = Cell("m", "speculative", True, "tools_auto")


def trial(first: Candidate = FAST, *, paired: bool = True) -> Trial:
    return Trial(CELL, FAST, SAFE, 0.98, first, paired)


def verdict(outcome: Outcome, severity: Severity = Severity.HARD, *, counts: bool = True) -> Verdict:
    return Verdict(outcome, (Defect(outcome, severity, "x"),) if outcome is not Outcome.CLEAN else (), counts)


CLEAN, BROKEN = verdict(Outcome.CLEAN), verdict(Outcome.TRUNCATED)
RESCUED = verdict(Outcome.RESCUED, Severity.NOTE)
CUT, UNJUDGED = verdict(Outcome.TRUNCATED, Severity.NOTE, counts=False), verdict(Outcome.UNJUDGED, counts=False)

answers = st.sampled_from([CLEAN, BROKEN, RESCUED, verdict(Outcome.SCHEMA_MISMATCH, Severity.SOFT), CUT, UNJUDGED])
firsts = st.sampled_from([FAST, SAFE])


def found(first: Candidate, *verdicts: Verdict, tried: Sequence[Candidate] = (), paired: bool = True) -> TrialFinding:
    drawn = trial(first, paired=paired)
    return finding_of(drawn, tried or [first, drawn.other], verdicts)


@given(answers, answers)
def test_who_is_blamed_depends_on_the_answers_and_never_on_their_order(fast: Verdict, safe: Verdict) -> None:
    """Otherwise the difference of the two rates would be estimated with a bias, at some share of failing alike."""
    if not fast.counts or not safe.counts:
        return  # a rerun that is no pool's fault leaves open what it would have been
    ran = {FAST: (fast, safe), SAFE: (safe, fast)}
    findings = {first: found(first, *each[: 1 + _reruns(each[0])]) for first, each in ran.items()}
    blamed = {first: findings[first] is TrialFinding.BAD for first in ran}
    rates = {FAST: not fast.good, SAFE: not safe.good}
    assert blamed[FAST] - blamed[SAFE] == rates[FAST] - rates[SAFE]
    assert (findings[FAST] is TrialFinding.BOTH) == (findings[SAFE] is TrialFinding.BOTH)


def _reruns(first: Verdict) -> bool:
    return first.outcome not in (Outcome.CLEAN, Outcome.RESCUED)


@given(firsts, answers)
def test_without_reruns_every_failure_of_the_first_answer_is_one(first: Candidate, answer: Verdict) -> None:
    expected = TrialFinding.GOOD if answer.good or not answer.counts else TrialFinding.BAD
    assert found(first, answer, tried=[first], paired=False) is expected


@given(firsts, st.lists(answers, max_size=3))
def test_what_another_pool_answered_in_its_place_is_no_answer_of_the_pool(first: Candidate, verdicts: Any) -> None:
    assert found(first, *verdicts, tried=[OTHER, *[first] * len(verdicts)]) is TrialFinding.ABSENT
    assert finding_of(trial(first), [], verdicts) is TrialFinding.ABSENT


@given(firsts)
def test_an_answer_that_was_given_up_is_left(first: Candidate) -> None:
    assert found(first, tried=[first]) is TrialFinding.LEFT


@given(firsts)
def test_a_rerun_that_did_not_come_or_end_or_ran_elsewhere_or_says_nothing_leaves_open_what_it_was(
    first: Candidate,
) -> None:
    other = trial(first).other
    assert found(first, BROKEN, tried=[first]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, tried=[first, other]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, CLEAN, tried=[first, OTHER]) is TrialFinding.UNSEEN
    assert found(first, BROKEN, CUT) is found(first, BROKEN, UNJUDGED) is TrialFinding.UNSEEN


@given(firsts, st.sampled_from([CUT, UNJUDGED]), st.lists(answers, max_size=2))
def test_an_answer_that_is_no_pools_fault_is_none_of_its_failures(
    first: Candidate, blameless: Verdict, more: Any
) -> None:
    assert found(first, blameless, *more) is TrialFinding.GOOD
