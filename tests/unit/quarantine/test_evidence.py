"""Evidence: bets that gain nothing if a pool is no worse, whoever asks for what, and that find one that is."""

import dataclasses
import math
from itertools import product

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.quarantine.evidence import RETURNING, SUSPECTED, UNSUSPECTED, Side, Stakes, TrialCounts, bets, capital

shares = st.floats(0.5, 0.999)
stakes = st.sampled_from([UNSUSPECTED, SUSPECTED, RETURNING])
sides = st.sampled_from(["worse", "no_worse"])
bounds = st.floats(0.0, 0.5)
rates = st.floats(0.0, 1.0)


def one(kind: str) -> TrialCounts:
    return TrialCounts(**{kind: 1})


def expected(chances: dict[str, float], side: Side, bound: float, own_share: float, spread: Stakes) -> list[float]:
    """What a trial with these chances makes, on average, of each stake's capital."""
    whole = bets(side, bound, own_share, spread)
    assert min(whole.weights) > 0
    assert sum(whole.weights) == pytest.approx(1)
    lone = [dataclasses.replace(whole, weights=(1.0,), factors=(factors,)) for factors in whole.factors]
    return [sum(chance * each.gain(one(kind)) for kind, chance in chances.items()) for each in lone]


def chances(own: float, reference: float, alike: float, own_share: float) -> dict[str, float]:
    """Of each kind of trial, for a request that the pools break with these chances, both at once with `alike`."""
    least, most = max(0.0, own + reference - 1.0), min(own, reference)
    both = least + alike * (most - least)
    side = {"own": (own_share, own), "reference": (1.0 - own_share, reference)}
    return {
        f"{name}_{finding}": share * chance
        for name, (share, bad) in side.items()
        for finding, chance in {"good": 1.0 - bad, "bad": bad - both, "both": both}.items()
    }


@given(rates, rates, rates, shares, bounds, sides, stakes)
def test_no_stake_gains_while_the_difference_is_within_the_bound_and_each_does_beyond(
    own: float, reference: float, alike: float, own_share: float, bound: float, side: Side, spread: Stakes
) -> None:
    """This is the whole promise, for one request after another, whatever its rates and however often both fail."""
    beyond = (own - reference - bound) * (1 if side == "worse" else -1)
    for made in expected(chances(own, reference, alike, own_share), side, bound, own_share, spread):
        assert made <= 1.0 + 1e-9 or beyond > 0
        assert made >= 1.0 - 1e-9 or beyond < 0


@given(shares, bounds, sides, stakes)
def test_what_was_not_seen_counts_as_what_speaks_most_for_the_status_quo(
    own_share: float, bound: float, side: Side, spread: Stakes
) -> None:
    made = bets(side, bound, own_share, spread)
    for arm in ("own", "reference"):
        gains = {finding: made.gain(one(f"{arm}_{finding}")) for finding in ("good", "bad", "both")}
        assert made.gain(one(f"{arm}_absent")) == pytest.approx(min(gains.values()))
        assert made.gain(one(f"{arm}_unseen")) == pytest.approx(min(gains["bad"], gains["both"]))


@given(st.integers(1, 3000), shares)
def test_who_gives_up_the_references_answers_only_proves_nothing(requests: int, own_share: float) -> None:
    """A client sees which pool answers; its own requests are broken everywhere, and it leaves where it likes."""
    left = round(requests * (1 - own_share) / own_share)
    trials = TrialCounts(own_bad=requests, reference_left=left)
    assert capital([trials], 8, bets("worse", 0.0, own_share, UNSUSPECTED)) < 20
    trials = TrialCounts(own_left=requests, reference_bad=left)
    assert capital([trials], 8, bets("worse", 0.0, own_share, UNSUSPECTED)) < 20


@given(st.lists(st.builds(TrialCounts, *[st.integers(0, 50)] * len(TrialCounts._fields)), max_size=8), stakes, sides)
def test_the_capital_is_spread_over_the_moments_to_begin(blocks: list[TrialCounts], spread: Stakes, side: Side) -> None:
    made = bets(side, 0.0, 0.9, spread)
    if any(block.own_left or block.reference_left for block in blocks):
        blocks = [block._replace(own_left=0, reference_left=0) for block in blocks]
    since = [made.gain(sum(blocks[start:], TrialCounts())) if start < len(blocks) else 1.0 for start in range(8)]
    later = (1.0 - spread.first) / 7
    assert capital(blocks, 8, made) == pytest.approx(spread.first * since[0] + later * sum(since[1:]))


@pytest.mark.parametrize(("own_share", "alpha"), list(product((0.9, 0.98, 0.995), (0.05, 0.001))))
def test_chance_that_is_more_likely_than_alpha_is_no_evidence(own_share: float, alpha: float) -> None:
    """If every request fails on both pools, each trial says only who answered first: n times the pool, by chance."""
    lucky = next(n for n in range(1, 10_000) if own_share**n <= alpha)
    made = bets("worse", 0.0, own_share, UNSUSPECTED)
    assert capital([TrialCounts(own_bad=lucky - 1)], 8, made) < 1 / alpha
    assert capital([TrialCounts(own_bad=2 * lucky)], 8, made) >= 1 / alpha


def test_any_number_of_trials_has_a_finite_capital() -> None:
    made = bets("worse", 0.0, 0.98, UNSUSPECTED)
    assert math.isfinite(capital([TrialCounts(own_bad=10**9)], 8, made))
    assert capital([TrialCounts(reference_bad=10**9)], 8, made) < 1
