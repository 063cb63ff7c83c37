from policies import Candidate
from serve.guard.path import rerun_order

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
