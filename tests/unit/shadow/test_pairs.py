"""A candidate is promoted or rejected by pairs, and rarely wrongly however often one looks."""

from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.pool import ShadowConfig
from serve.shadow.pairs import Finding, PairCounts, PairVerdict, judge, listing

ALPHA, TOLERANCE = 0.01, 0.01
NUMBERS = st.integers(0, 5000)
COUNTS = st.builds(PairCounts, NUMBERS, NUMBERS, NUMBERS, NUMBERS)


def end_of(random: Random, candidate: float, served: float, most: int = 20_000) -> tuple[Finding, int]:
    """Plays pairs of independent answers with these rates of bad ones; looks every 50 pairs."""
    counts = PairCounts()
    while counts.pairs < most:
        good = [(random.random() >= served, random.random() >= candidate) for _ in range(50)]
        counts = PairCounts.total(
            [counts, *(PairCounts.of(served_good=ours, candidate_good=its) for ours, its in good)]
        )
        if (finding := judge(counts, ALPHA, TOLERANCE).finding) != "not yet":
            return finding, counts.pairs
    return "not yet", most


@pytest.mark.parametrize(
    ("candidate", "served", "finding", "median"),
    [(0.0, 0.0, "promote", 900), (0.0, 0.02, "promote", 800), (0.05, 0.0, "reject", 400), (0.1, 0.02, "reject", 300),
     (0.02, 0.0, "reject", 1500)],
)  # fmt: skip
def test_a_candidate_is_judged_after_some_hundred_pairs(
    candidate: float, served: float, finding: Finding, median: int
) -> None:
    random = Random(7)
    ends = [end_of(random, candidate, served) for _ in range(15)]
    assert {found for found, _ in ends} == {finding}
    assert sorted(pairs for _, pairs in ends)[7] <= median


def test_a_candidate_that_is_as_good_is_hardly_ever_rejected() -> None:
    random = Random(7)
    ends = [end_of(random, 0.03, 0.03, most=2500)[0] for _ in range(60)]
    assert ends.count("reject") <= 2


def test_one_that_is_worse_by_the_tolerance_is_hardly_ever_promoted() -> None:
    random = Random(7)
    ends = [end_of(random, TOLERANCE, 0.0, most=2500)[0] for _ in range(60)]
    assert ends.count("promote") <= 2


@given(st.floats(1e-9, 0.2), st.floats(1e-9, 0.5), st.booleans(), st.booleans())
def test_no_single_pair_decides_by_any_terms_that_a_configuration_may_have(
    alpha: float, tolerance: float, ours: bool, its: bool
) -> None:
    ShadowConfig(pool="p", alpha=alpha, tolerance=tolerance)
    assert judge(PairCounts.of(served_good=ours, candidate_good=its), alpha, tolerance).finding == "not yet"


@given(COUNTS)
def test_the_bounds_contain_what_was_seen(counts: PairCounts) -> None:
    verdict = judge(counts, ALPHA, TOLERANCE)
    assert -1 <= verdict.at_least <= verdict.at_most <= 1
    if verdict.difference is not None:
        assert verdict.at_least <= verdict.difference <= verdict.at_most
    assert verdict.finding != "promote" or verdict.at_least < TOLERANCE
    assert verdict.finding != "reject" or verdict.at_most > 0


@given(COUNTS, NUMBERS)
def test_pairs_of_which_both_were_bad_change_nothing(counts: PairCounts, both_bad: int) -> None:
    assert judge(counts, ALPHA, TOLERANCE) == judge(counts._replace(both_bad=both_bad), ALPHA, TOLERANCE)


@given(COUNTS)
def test_who_is_compared_with_whom_only_turns_the_sign(counts: PairCounts) -> None:
    turned = counts._replace(candidate_bad=counts.served_bad, served_bad=counts.candidate_bad)
    one, other = judge(counts, ALPHA, TOLERANCE), judge(turned, ALPHA, TOLERANCE)
    assert one.at_least == pytest.approx(-other.at_most)
    assert (one.difference or 0) == -(other.difference or 0)


def test_without_pairs_there_is_no_verdict() -> None:
    assert judge(PairCounts(), ALPHA, TOLERANCE) == PairVerdict("not yet", None, -1.0, 1.0)


def test_replicas_and_classes_are_added_up() -> None:
    row = {"model": "m", "pool": "p", "alpha": ALPHA, "tolerance": TOLERANCE, "served_s": 4.0, "candidate_s": 2.0}
    one = {**row, "request_class": "tools", **PairCounts(3, 1)._asdict(), "outcomes": {"clean": 3, "truncated": 1}}
    two = {**row, "request_class": "json", **PairCounts(4)._asdict(), "outcomes": {"clean": 4}}
    every, *classes = listing([one, two, one])
    assert (every["request_class"], every["pairs"], every["outcomes"]) == (None, 12, {"clean": 10, "truncated": 2})
    assert every["candidate_mean_s"] == pytest.approx(0.5)
    assert [(each["request_class"], each["pairs"]) for each in classes] == [("json", 4), ("tools", 8)]


def row_of(counts: PairCounts, **more: Any) -> dict[str, Any]:
    row = {"model": "m", "pool": "p", "request_class": "tools", "alpha": ALPHA, "tolerance": TOLERANCE}
    return {**row, **counts._asdict(), "outcomes": {}, "served_s": 1.0, "candidate_s": 1.0, **more}


@pytest.mark.parametrize(
    ("counts", "lost", "finding", "why"),
    [
        (PairCounts(none_bad=2000), {"busy": 100}, "promote", ""),
        (PairCounts(none_bad=2000), {"skipped": 9000, "faults": 9}, "promote", ""),
        (PairCounts(none_bad=2000), {"busy": 9000}, "not yet", "too busy for 9000 of 11000 copies"),
        (PairCounts(candidate_bad=2000), {"busy": 9000}, "reject", ""),
        (PairCounts(none_bad=5), {}, "not yet", ""),
        (PairCounts(both_bad=2000), {}, "not yet", "both answers were bad each time"),
        (PairCounts(), {"faults": 3}, "not yet", "the gateway's own code"),
        (PairCounts(), {"skipped": 3}, "not yet", "skipped because of the load"),
        (PairCounts(), {}, "not yet", "no answer to a copy"),
    ],
)
def test_a_candidate_without_a_verdict_is_told_why_unless_more_pairs_are_all_it_needs(
    counts: PairCounts, lost: dict[str, int], finding: Finding, why: str
) -> None:
    every, *_ = listing([row_of(counts, **lost)])
    assert every["verdict"] == finding
    assert why in every["why"]
    assert bool(every["why"]) == bool(why)
