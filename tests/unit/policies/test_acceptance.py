"""What drafters reach is learned: from a prior, forgetting what was long ago, bounded, and with an alarm."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies.acceptance import Acceptance, AnswerLength


def taught(prior: float, answers: int, steps: int, accepted: int) -> Acceptance:
    learned = Acceptance(prior)
    for _ in range(answers):
        learned.learn(steps, accepted)
    return learned


def test_nothing_learned_is_the_prior() -> None:
    assert Acceptance(2.7).length == 2.7


def test_a_few_answers_move_the_prior_and_many_replace_it() -> None:
    assert 2.7 < taught(2.7, 2, 100, 270).length < 3.2
    assert taught(2.7, 300, 100, 270).length == pytest.approx(3.7, abs=0.01)


def test_a_length_is_measured_once_answers_weigh_more_than_the_prior() -> None:
    assert not Acceptance(2.7).measured
    assert not taught(2.7, 4, 100, 170).measured
    assert taught(2.7, 6, 100, 170).measured


def test_what_is_expected_changes_with_the_draft_length_and_what_was_measured_stays() -> None:
    learned = Acceptance(1.0, drafts=16)
    learned.expect(2.7, 3)
    assert learned.length == 2.7
    learned.learn(100, 301)
    assert learned.answers == 0, "more than were drafted"
    for _ in range(300):
        learned.learn(100, 200)
    learned.expect(4.0, 7)
    assert learned.length == pytest.approx(3.0, abs=0.01)
    for _ in range(300):
        learned.learn(100, 420)
    assert (learned.answers, learned.length) == (600, pytest.approx(5.2, abs=0.4))


def test_a_change_of_the_drafter_is_learned_within_a_few_hundred_answers() -> None:
    learned = taught(3.7, 2000, 100, 270)
    for _ in range(300):
        learned.learn(100, 50)
    assert learned.length == pytest.approx(1.5, abs=0.3)


def test_drafts_that_are_accepted_half_as_often_as_expected_are_an_alarm() -> None:
    assert taught(3.0, 200, 100, 90).collapsed
    assert not taught(3.0, 200, 100, 120).collapsed
    assert not taught(3.0, 10, 100, 0).collapsed, "too few answers to be sure"


def test_an_alarm_ends_when_the_drafter_recovers() -> None:
    learned = taught(3.0, 200, 100, 20)
    for _ in range(300):
        learned.learn(100, 200)
    assert not learned.collapsed


def test_an_answer_without_speculative_steps_says_nothing() -> None:
    learned = taught(2.7, 10, 0, 0)
    assert (learned.length, learned.answers) == (2.7, 0)


def test_the_length_of_answers_is_learned_too() -> None:
    answers = AnswerLength()
    for _ in range(500):
        answers.learn(270)
    assert answers.tokens == pytest.approx(270, abs=5)
    answers.learn(10**12)
    assert answers.tokens < 300, "one answer moves the mean little, whatever an engine says of its length"


def test_an_answer_that_accepted_more_than_was_drafted_is_not_believed() -> None:
    learned = Acceptance(2.7, drafts=3)
    learned.learn(100, 301)
    assert (learned.length, learned.answers) == (2.7, 0)


def test_one_answer_never_outweighs_all_others() -> None:
    learned = Acceptance(3.0, drafts=3)
    for _ in range(300):
        learned.learn(100, 200)
    learned.learn(10**9, 0)
    assert learned.length > 2.3


def test_what_has_faded_is_corrected_by_few_answers_and_stays_until_then() -> None:
    learned = taught(3.7, 300, 100, 10)
    known = learned.length
    for _ in range(100):
        learned.fade(0.9)
    assert learned.length == pytest.approx(known, abs=0.01)
    for _ in range(10):
        learned.learn(100, 270)
    assert learned.length > 2.2


def test_what_is_known_is_as_sure_as_the_answers_that_still_count() -> None:
    one, other = Acceptance(prior=3.0), Acceptance(prior=3.0)
    for _ in range(60):
        one.learn(50, 10)
    before = one.weight
    other.merge(one.totals)
    one.merge(other.totals)
    assert 40 < before == one.weight < 60
    assert other.weight == pytest.approx(one.totals[1] / 100)
    assert one.shown == other.shown == pytest.approx(1.2)
    one.fade(0.5, 15.0)
    assert one.weight == pytest.approx(before / 2, rel=0.2)
    for _ in range(100):
        one.fade(0.5, 15.0)
    assert one.weight == pytest.approx(20, rel=0.2), "a thousand steps, of fifty each"


def test_how_old_it_is_counts_from_the_last_answer_that_was_learned_here() -> None:
    learned = Acceptance(2.7)
    learned.merge((9, 900.0, 900.0))
    learned.fade(0.9, 5.0)
    assert learned.idle_s is None, "others have learned it"
    learned.learn(100, 100)
    learned.fade(0.9, 5.0)
    learned.learn(0, 0)
    learned.fade(0.9, 2.0)
    assert learned.idle_s == 7.0


@given(
    drafts=st.integers(1, 8),
    answers=st.lists(st.tuples(st.integers(-1, 10**6), st.floats(0, 1)), max_size=50),
    prior=st.floats(0, 1),
)
def test_the_length_stays_between_one_and_all_drafts(
    drafts: int, answers: list[tuple[int, float]], prior: float
) -> None:
    learned = Acceptance(1 + prior * drafts)
    for steps, share in answers:
        learned.learn(steps, int(max(steps, 0) * drafts * share))
    assert 1 <= learned.length <= drafts + 1 + 1e-9
