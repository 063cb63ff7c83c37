"""Step times reproduce what was published; tokens per step follow the classes of a request."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.classes import BIT, masks_of
from policies.load_model import PUBLISHED, prior_length

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
