"""Clean-rates: sound bounds, quarantine by difference at its stated false-alarm rate, probes, return, persistence."""

import json
from random import Random

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Cell, QuarantineReason
from serve.config.quarantine import QuarantineConfig
from serve.guard.core import Outcome
from serve.quarantine.confidence import SUSPECTED, UNSUSPECTED, lower_bound, upper_bound
from serve.quarantine.detector import MOST_CHANGES, Detector, OutcomeCount, Terms
from serve.quarantine.record import Change

FAST = Cell("m", "fast", True, "tools_auto")
SAFE = Cell("m", "safe", False, "tools_auto")
BAD, GOOD = Outcome.INVALID_JSON, Outcome.CLEAN


def make(**options: float) -> Detector:
    return Detector(Terms(QuarantineConfig(**options), {"m": "safe"}))  # type: ignore[arg-type]


def one(cell: Cell, outcome: str, suspected: bool = False) -> list[OutcomeCount]:
    return [OutcomeCount(cell, outcome, 1, suspected)]


def is_out(detector: Detector, cell: Cell = FAST) -> bool:
    return cell in detector.quarantined()


def run(
    detector: Detector, rng: Random, bad_rates: dict[Cell, float], rounds: int, suspected: bool = False
) -> tuple[int, Change] | None:
    """Count answers of every pool in turn; the round of the first change and the change."""
    for number in range(rounds):
        for cell, rate in bad_rates.items():
            outcome = BAD if rng.random() < rate else GOOD
            for change in detector.absorb(one(cell, outcome, suspected), now_s=number):
                return number, change
    return None


@pytest.mark.parametrize("rate", [0.005, 0.05, 0.3])
@pytest.mark.parametrize("prior", [UNSUSPECTED, SUSPECTED])
def test_bounds_miss_the_true_rate_at_any_time_no_more_often_than_stated(rate: float, prior: object) -> None:
    rng, missed, runs = Random(1), 0, 300
    for _ in range(runs):
        bad = good = 0
        for number in range(1, 401):
            if rng.random() < rate:
                bad += 1
            else:
                good += 1
            if number % 5 == 0 and not (
                lower_bound(bad, good, 0.05, prior) <= rate <= upper_bound(bad, good, 0.05, prior)  # type: ignore[arg-type]
            ):
                missed += 1
                break
    assert missed <= 0.05 * runs


def test_bounds_close_in_on_the_observed_rate() -> None:
    assert lower_bound(0, 100, 0.01) == 0.0
    assert upper_bound(5, 0, 0.01) == 1.0
    for size in (100, 1000, 10_000):
        low, high = lower_bound(size // 10, size - size // 10, 0.01), upper_bound(size // 10, size - size // 10, 0.01)
        assert low < 0.1 < high
        assert high - low < 3 / size**0.5


@pytest.mark.parametrize("model_is_weak", [0.0, 0.02, 0.2])
def test_a_pool_no_worse_than_the_reference_is_left_alone(model_is_weak: float) -> None:
    alarms, runs = 0, 60
    for seed in range(runs):
        rates = {FAST: model_is_weak, SAFE: model_is_weak}
        alarms += run(make(alpha=0.05), Random(seed), rates, 1000) is not None
    assert alarms <= 0.05 * runs


@pytest.mark.parametrize(("rate", "within"), [(0.5, 100), (0.1, 400), (0.03, 1900)])
def test_a_worse_pool_is_quarantined_within_the_stated_number_of_answers(rate: float, within: int) -> None:
    for seed in range(10):
        found = run(make(), Random(seed), {FAST: rate, SAFE: 0.0}, within)
        assert found is not None
        assert found[1].cell == FAST
        assert found[1].status == "quarantined"
        assert "at least" in found[1].why


def test_without_any_answer_of_the_reference_nobody_is_judged() -> None:
    assert run(make(), Random(0), {FAST: 0.5}, 500) is None


def test_a_suspected_pool_is_caught_no_later() -> None:
    for seed in range(10):
        plain = run(make(), Random(seed), {FAST: 0.4, SAFE: 0.0}, 400)
        suspected = run(make(), Random(seed), {FAST: 0.4, SAFE: 0.0}, 400, suspected=True)
        assert plain is not None
        assert suspected is not None
        assert suspected[0] <= plain[0]


def test_a_fault_that_comes_late_is_not_hidden_by_a_long_clean_record() -> None:
    detector = make(window=500)
    rng = Random(0)
    assert run(detector, rng, {FAST: 0.0, SAFE: 0.0}, 5100) is None
    found = run(detector, rng, {FAST: 0.3, SAFE: 0.0}, 600)
    assert found is not None


def test_a_quarantined_pool_that_is_still_bad_stays_out() -> None:
    detector, rng = make(), Random(0)
    run(detector, rng, {FAST: 0.5, SAFE: 0.0}, 500)
    assert is_out(detector)
    assert run(detector, rng, {FAST: 0.5}, 500) is None


def test_a_cured_pool_returns_within_the_stated_number_of_probes() -> None:
    detector, rng = make(), Random(0)
    run(detector, rng, {FAST: 0.5, SAFE: 0.0}, 500)
    found = run(detector, rng, {FAST: 0.0}, 150)
    assert found is not None
    assert found[1].status == "open"
    assert not is_out(detector)


def test_a_pool_that_is_still_worse_rarely_returns() -> None:
    returned = 0
    for seed in range(40):
        detector, rng = make(), Random(seed)
        run(detector, rng, {FAST: 0.5, SAFE: 0.0}, 500)
        returned += run(detector, rng, {FAST: 0.06}, 2000) is not None
    assert returned <= 2


def restored(detector: Detector) -> Detector:
    other = make()
    other.restore(json.loads(json.dumps(detector.as_dict())))
    return other


def test_state_survives_a_restart_as_plain_values() -> None:
    detector = make()
    run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 500)
    run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 10)
    other = restored(detector)
    assert other.as_dict() == detector.as_dict()
    assert is_out(other)
    with pytest.raises(ValueError, match="version"):
        other.restore({"version": 99, "entries": []})


def test_classes_models_and_modes_are_judged_apart() -> None:
    detector = make()
    run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 500)
    assert set(detector.quarantined()) == {FAST}


def test_the_order_within_a_batch_says_nothing() -> None:
    detector = make()
    detector.absorb([OutcomeCount(SAFE, GOOD, 2000, False)], 0)
    batch = [OutcomeCount(FAST, BAD, 5, False), OutcomeCount(FAST, GOOD, 1500, False)]
    assert detector.absorb(batch, 0) == [], "five bad answers in a row would be an alarm"


@pytest.mark.parametrize(("action", "status", "held"), [("quarantine", "quarantined", True), ("pin", "open", True)])
def test_what_an_operator_quarantines_or_pins_only_an_operator_changes(action, status, held) -> None:  # type: ignore[no-untyped-def]
    detector, rng = make(), Random(0)
    change = detector.order(FAST, action, "new drafter", 1.0)
    assert (change.status, change.held, change.by) == (status, held, "operator")
    assert run(detector, rng, {FAST: 0.5, SAFE: 0.0}, 500) is None
    assert run(detector, rng, {FAST: 0.0, SAFE: 0.0}, 500) is None
    assert is_out(detector) == (status == "quarantined")
    change = detector.order(FAST, "lift", "proven", 2.0)
    assert (change.status, change.held) == ("open", False)
    assert run(detector, rng, {FAST: 0.5, SAFE: 0.0}, 500) is not None, "it is judged again"


def test_a_finding_tells_the_figures_or_the_operators_reason() -> None:
    detector = make()
    run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 500)
    finding = detector.quarantined()[FAST]
    assert finding.basis.startswith("measured n=")
    assert "answers bad" in finding.why
    detector.order(FAST, "quarantine", "incident 17", 3.0)
    assert detector.quarantined() == {FAST: QuarantineReason("incident 17", "operator")}


def test_operators_see_rates_bounds_and_outcomes() -> None:
    detector = make()
    detector.absorb([*one(FAST, BAD, suspected=True), *one(SAFE, GOOD)], 0)
    fast, safe = detector.view()
    assert fast["outcomes"] == {"invalid_json": 1}
    assert fast["bad_rate_at_least"] <= 1.0 <= fast["bad_rate_at_most"]
    assert (fast["clean_rate"], fast["suspected"], fast["reference"]) == (0.0, True, False)
    assert (safe["clean_rate"], safe["suspected"], safe["reference"]) == (1.0, False, True)


def test_terms_can_change_while_it_works() -> None:
    detector = make()
    detector.terms = Terms(QuarantineConfig(), {})
    assert run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 500) is None
    detector.terms = Terms(QuarantineConfig(), {"m": "safe"})
    assert run(detector, Random(0), {FAST: 0.5, SAFE: 0.0}, 500) is not None


batches = st.lists(st.tuples(st.sampled_from([FAST, SAFE]), st.sampled_from(list(Outcome)), st.integers(1, 30)))


@given(batches, st.integers(5, 50))
def test_no_answer_is_lost_whatever_the_windows(batch: list[tuple[Cell, str, int]], window: int) -> None:
    detector = make(window=window)
    changes = detector.absorb([OutcomeCount(*each, False) for each in batch], 0)
    for cell in {cell for cell, _, _ in batch} - {change.cell for change in changes}:
        (entry,) = (each for each in detector.as_dict()["entries"] if tuple(each["cell"]) == cell)
        told = sum(entry["outcomes"].values()) + sum(entry["before"] or ())
        assert told == sum(count for other, _, count in batch if other == cell)
    assert restored(detector).as_dict() == detector.as_dict()


def test_changes_are_remembered_with_who_made_them_even_by_another_detector() -> None:
    detector = make()
    detector.order(FAST, "quarantine", "incident 17", 10.0, "key-1")
    detector.order(FAST, "lift", "mended", 20.0, "key-2")
    other = make()
    other.restore(json.loads(json.dumps(detector.as_dict())))
    assert [(each.status, each.at_s, each.operator, each.why) for each in other.changes()] == [
        ("open", 20.0, "key-2", "mended"),
        ("quarantined", 10.0, "key-1", "incident 17"),
    ]


def test_the_oldest_changes_are_forgotten() -> None:
    detector = make()
    for number in range(3 * MOST_CHANGES):
        detector.order(FAST, "lift", "again", float(number))
    assert detector.changes()[0].at_s == 3 * MOST_CHANGES - 1
    assert len(detector.changes()) == MOST_CHANGES


def test_what_the_test_does_is_remembered_too() -> None:
    detector = make()
    change = run(detector, Random(1), {FAST: 0.6, SAFE: 0.0}, 500)
    assert change is not None
    assert detector.changes() == [change[1]]
