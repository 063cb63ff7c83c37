"""Step times are learned as a factor on a table, within bounds, and merge in any order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.step_model import StepModel, merged


def taught(batch: float, ratio: float, answers: int = 200) -> StepModel:
    model = StepModel()
    for _ in range(answers):
        model.learn(batch, ratio)
    return model


def test_nothing_learned_is_the_table() -> None:
    assert all(StepModel().factor(batch) == 1.0 for batch in (0, 1, 100, 10_000))


@pytest.mark.parametrize("batches", [0, 1, 2, 9, 257, 2000])
def test_a_table_is_scaled_by_the_factor_of_each_batch(batches: int) -> None:
    model, table = taught(32, 3.0), [0.01 + batch / 1000 for batch in range(batches)]
    assert model.scaled(table) == tuple(step_s * model.factor(batch) for batch, step_s in enumerate(table))


@pytest.mark.parametrize("ratio", [0.3, 1.0, 2.0, 5.0])
def test_an_engine_is_as_slow_as_its_answers_were(ratio: float) -> None:
    assert taught(32, ratio, 500).factor(40) == pytest.approx(ratio, rel=0.15)


def test_a_batch_without_answers_follows_its_neighbours() -> None:
    model = taught(32, 2.0)
    assert model.factor(32) > model.factor(128) > model.factor(512) >= 1.0
    assert model.factor(64) > 1.5


def test_one_odd_answer_moves_little() -> None:
    model = taught(32, 1.0)
    model.learn(32, 1000.0)
    assert model.factor(32) < 1.01


def test_what_was_learned_long_ago_is_forgotten() -> None:
    model = taught(32, 3.0)
    for _ in range(3000):
        model.learn(32, 1.0)
    assert model.factor(32) == pytest.approx(1.0, rel=0.05)


OBSERVED = st.lists(st.tuples(st.floats(-10, 1e4), st.floats(allow_nan=True, allow_infinity=True)), max_size=60)


@given(OBSERVED, OBSERVED)
def test_factors_stay_within_bounds_whatever_is_observed(
    own: list[tuple[float, float]], others: list[tuple[float, float]]
) -> None:
    model, other = StepModel(), StepModel()
    for one, observed in ((model, own), (other, others)):
        for batch, ratio in observed:
            one.learn(batch, ratio)
    model.merge(other.totals)
    assert all(1 / 16.001 <= model.factor(batch) <= 16.001 for batch in (0, 1, 7, 300, 1e6))


TOTALS = st.lists(st.tuples(st.floats(0, 1e6), st.floats(-1e6, 1e6)), min_size=10, max_size=10).map(tuple)


@given(st.lists(TOTALS, max_size=4), st.randoms())
def test_totals_merge_in_any_order(totals: list[tuple[tuple[float, float], ...]], rng: object) -> None:
    shuffled = list(totals)
    rng.shuffle(shuffled)  # type: ignore[attr-defined]
    for one, two in zip(merged(totals), merged(shuffled), strict=True):
        assert math.isclose(one[0], two[0], abs_tol=1e-6)
        assert math.isclose(one[1], two[1], abs_tol=1e-6)


def test_two_replicas_together_know_what_one_would() -> None:
    alone = taught(32, 2.0, 100)
    one, two = taught(32, 2.0, 50), taught(32, 2.0, 50)
    one.merge(two.totals)
    assert one.factor(32) == pytest.approx(alone.factor(32), rel=0.05)
    one.merge(())
    assert one.factor(32) < alone.factor(32)
