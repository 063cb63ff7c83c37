"""Where a request runs whose answer broke."""

from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from policies import Candidate, Cell, Trial
from serve.guard.rerun import rerun_order

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


@given(st.permutations(ALL), st.data())
def test_of_two_that_are_compared_each_is_the_others_first_rerun(candidates: list[Candidate], data: Any) -> None:
    subject, reference = data.draw(st.permutations(ALL))[:2]
    for first, other in ((subject, reference), (reference, subject)):
        trial = Trial(Cell("m", subject.pool, subject.speculative, "tools_auto"), subject, reference, 0.5, first, True)
        assert rerun_order(candidates, [first], trial)[0] == other
        assert rerun_order(candidates, [other], trial) == rerun_order(candidates, [other])
        assert rerun_order(candidates, [first], trial._replace(paired=False)) == rerun_order(candidates, [first])
