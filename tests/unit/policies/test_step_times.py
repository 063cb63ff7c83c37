"""Step times are learned as a factor on a table, within bounds, and merge in any order."""

import math

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.acceptance import prior_length
from policies.classes import BIT, masks_of
from policies.step_times import PUBLISHED, StepModel, merged

POINTS = [
    (batch, drafts, PUBLISHED.step_s[row][column])
    for row, drafts in enumerate(PUBLISHED.drafts)
    for column, batch in enumerate(PUBLISHED.batches)
]


@pytest.mark.parametrize(("batch", "drafts", "step_s"), POINTS)
def test_the_table_reproduces_itself(batch: int, drafts: int, step_s: float) -> None:
    assert PUBLISHED.at(batch, drafts) == pytest.approx(step_s)


def test_between_two_points_the_time_is_between_theirs() -> None:
    assert PUBLISHED.at(40, 0) == pytest.approx((0.00690 + 0.00777) / 2)
    assert PUBLISHED.at(1, 2) == pytest.approx((0.00737 + 0.00884) / 2)


def test_beyond_the_table_time_grows_on() -> None:
    assert PUBLISHED.at(448, 0) == pytest.approx(2 * 0.01449 - 0.00777)
    assert PUBLISHED.at(1, 7) > PUBLISHED.at(1, 5)


@given(batch=st.floats(0, 1000), more=st.floats(0, 100), drafts=st.integers(0, 4))
def test_more_sequences_or_more_drafts_never_take_less_time(batch: float, more: float, drafts: int) -> None:
    assert PUBLISHED.at(batch + more, drafts) >= PUBLISHED.at(batch, drafts) > 0
    assert PUBLISHED.at(batch, drafts + 1) >= PUBLISHED.at(batch, drafts)


@pytest.mark.parametrize(
    ("expression", "published"),
    [("plain+stream", 2.69), ("tools_auto", 3.7), ("json_schema+grammar", 3.29), ("tools_auto+thinking", 2.88)],
)
def test_priors_are_what_model_cards_say_at_three_drafts(expression: str, published: float) -> None:
    (mask,) = masks_of(expression)
    assert prior_length(mask, 3) == pytest.approx(published, abs=0.1)


@given(mask=st.integers(0, 2 * max(BIT.values()) - 1), drafts=st.integers(0, 8))
def test_a_step_gives_one_token_and_at_most_one_a_draft_more(mask: int, drafts: int) -> None:
    assert 1 <= prior_length(mask, drafts) <= drafts + 1
    assert prior_length(mask, 0) == 1


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
