"""The detector: false alarms at most as stated, worse pools found, probes, return, orders, persistence."""

import json
from itertools import product

import numpy as np
import pytest
from hypothesis import given
from hypothesis import strategies as st

from bench.quarantine import Case, kinds, looks_until_change
from policies import Cell, QuarantineReason
from policies.quarantine import PROBED_FIRST
from serve.config.quarantine import QuarantineConfig
from serve.guard.core import Outcome
from serve.quarantine.detector import BLOCKS, MOST_CHANGES, RECENT, Detector, DetectorTerms, OutcomeCount, TrialCount
from serve.quarantine.evidence import RETURNING, SUSPECTED, UNSUSPECTED, TrialCounts, bets, capital

FAST = Cell("m", "speculative", True, "tools_auto")
SAFE = Cell("m", "standard", False, "tools_auto")
OWN = 0.98


def make(**options: float) -> Detector:
    return Detector(DetectorTerms(QuarantineConfig(**options), {"m": "standard"}))  # type: ignore[arg-type]


def trial(kind: str, number: int, *, own_share: float = OWN, suspected: bool = False, cell: Cell = FAST) -> TrialCount:
    return TrialCount(cell, own_share, kind, number, suspected)


def try_(detector: Detector, *trials: TrialCount) -> list[str]:
    return [change.status for change in detector.absorb((), 1.0, trials)]


WORSE = (trial("own_bad", 490), trial("own_good", 490), trial("reference_good", 20))
SOUND = (trial("own_good", 980), trial("reference_good", 20))
CURED = (
    trial("own_good", 150, own_share=PROBED_FIRST),
    trial("reference_good", 150, own_share=PROBED_FIRST),
)


def out(**options: float) -> Detector:
    detector = make(**options)
    assert try_(detector, *WORSE) == ["quarantined"]
    return detector


def is_out(detector: Detector) -> bool:
    return FAST in detector.quarantined()


def binomial_bound(runs: int, rate: float, chance: float) -> int:
    """How many of so many runs are exceeded with no more than this chance, if each has the rate."""
    tail, number, term = 1.0, 0, (1.0 - rate) ** runs
    while (tail := tail - term) > chance:
        term *= (runs - number) / (number + 1) * rate / (1.0 - rate)
        number += 1
    return number


def simulated(
    case: Case, requests: int, seed: int, *, looks: int = 100, suspected: bool = False, **options: float
) -> int | None:
    """After how many looks a pool is quarantined, if it is."""
    own_share = 1.0 - case.reference_share
    chances = kinds(case.pairs, own_share)
    rates = np.asarray(list(chances.values()))
    numbers = np.random.default_rng([seed, 1]).multinomial(requests // looks, rates / rates.sum(), size=looks)
    detector = make(reference_share=case.reference_share, **options)
    return looks_until_change(detector, chances, numbers, own_share, suspected)


# The promise

SOUND_POOLS = [
    Case(rate, 0.0, alike, client, share)
    for rate, alike, client, share in product(
        (0.01, 0.2, 0.5), (0.0, 1.0), ("none", "coin", "unsatisfiable"), (0.005, 0.1)
    )
]


@pytest.mark.parametrize("suspected", [False, True])
def test_a_pool_no_worse_than_the_reference_is_quarantined_at_most_as_often_as_stated(suspected: bool) -> None:
    """Bound of the number of false alarms: exceeded once in a million, if the stated rate were just kept."""
    alpha, each = 0.05, 10
    alarms = sum(
        simulated(case, round(4000 / case.reference_share), seed, looks=25, alpha=alpha, suspected=suspected)
        is not None
        for number, case in enumerate(SOUND_POOLS)
        for seed in range(each * number, each * (number + 1))
    )
    assert alarms <= binomial_bound(each * len(SOUND_POOLS), alpha, 1e-6)


@pytest.mark.parametrize("better_by", [0.05, 0.2])
def test_a_better_pool_is_never_quarantined(better_by: float) -> None:
    case = Case(0.3, -better_by, 0.0, "none", 0.02)
    assert not any(simulated(case, 200_000, seed, alpha=0.05) for seed in range(10))


@pytest.mark.parametrize(
    ("case", "within"),
    [
        (Case(0.0, 0.5, 0.0, "none", 0.02), 1_100),
        (Case(0.0, 0.1, 0.0, "none", 0.02), 7_000),
        (Case(0.05, 0.05, 1.0, "none", 0.02), 14_000),
        (Case(0.05, 0.5, 1.0, "unsatisfiable", 0.1), 4_000),
    ],
)
def test_a_worse_pool_is_found_in_half_of_the_runs_within_the_documented_number_of_requests(
    case: Case, within: int
) -> None:
    found = [simulated(case, within, seed) for seed in range(20)]
    assert sum(each is not None for each in found) >= 10


def test_a_suspected_pool_is_found_sooner() -> None:
    case = Case(0.0, 0.4, 0.0, "none", 0.02)
    plain, suspected = (
        [simulated(case, 4_000, seed, looks=400, suspected=suspected) or 401 for seed in range(20)]
        for suspected in (False, True)
    )
    assert sum(suspected) < sum(plain)


@given(
    st.floats(0.001, 0.3),
    st.lists(st.tuples(st.sampled_from(TrialCounts._fields), st.integers(1, 400)), min_size=1, max_size=30),
    st.booleans(),
)
def test_a_pool_is_out_exactly_when_the_bets_have_made_one_by_alpha_of_their_capital(
    alpha: float, batches: list[tuple[str, int]], suspected: bool
) -> None:
    detector, seen = make(alpha=alpha, window=1_000_000), TrialCounts()
    made = bets("worse", 0.0, OWN, SUSPECTED if suspected else UNSUSPECTED)
    for kind, number in batches:
        seen += TrialCounts(**{kind: number})
        expected = capital([seen], BLOCKS, made) >= 1.0 / alpha
        assert try_(detector, trial(kind, number, suspected=suspected)) == (["quarantined"] if expected else [])
        if expected:
            return


@pytest.mark.parametrize("alpha", [0.001, 0.01, 0.05, 0.2])
def test_alpha_is_the_threshold_and_neither_its_half_nor_its_double(alpha: float) -> None:
    made, numbers = bets("worse", 0.0, OWN, UNSUSPECTED), range(1, 3000)
    expected = next(n for n in numbers if capital([TrialCounts(own_bad=n)], BLOCKS, made) * alpha >= 1)
    detector = make(alpha=alpha)
    found = next(n for n in numbers if try_(detector, trial("own_bad", 1)))
    assert found == expected
    for wrong in (alpha / 2, alpha * 2):
        assert found != next(n for n in numbers if capital([TrialCounts(own_bad=n)], BLOCKS, made) * wrong >= 1)
    assert 0.98 ** (found - 1) < 4 * alpha, "and not far from what chance alone would allow"
    assert 0.98**found <= alpha


@pytest.mark.parametrize("return_alpha", [0.01, 0.05, 0.2])
def test_return_alpha_is_the_threshold_and_neither_its_half_nor_its_double(return_alpha: float) -> None:
    made, numbers = bets("no_worse", 0.05, PROBED_FIRST, RETURNING), range(1, 1000)

    def first(alpha: float) -> int:
        return next(
            n for n in numbers if capital([TrialCounts(own_good=n, reference_good=n)], BLOCKS, made) * alpha >= 1
        )

    detector = out(return_alpha=return_alpha)
    trials = [trial(kind, 1, own_share=PROBED_FIRST) for kind in ("own_good", "reference_good")]
    found = next(n for n in numbers if try_(detector, *trials))
    assert found == first(return_alpha)
    assert first(2 * return_alpha) < found < first(return_alpha / 2)


def test_margin_is_how_much_worse_a_pool_may_be() -> None:
    case = Case(0.05, 0.3, 0.0, "none", 0.1)
    assert all(simulated(case, 20_000, seed, margin=0.1) for seed in range(5))
    assert not any(simulated(case, 40_000, seed, margin=0.4) for seed in range(5))


def test_without_any_answer_of_the_reference_a_few_failures_prove_nothing() -> None:
    assert try_(make(), trial("own_bad", 200), trial("own_good", 200)) == []


def test_what_was_drawn_with_another_share_says_nothing() -> None:
    detector = make()
    assert try_(detector, *[each._replace(own_share=0.5) for each in WORSE]) == []
    assert detector.view()[0]["trials"] == {"own": 0, "reference": 0}


def test_trials_with_an_earlier_share_are_not_judged_by_the_bets_of_another() -> None:
    detector = make()
    try_(detector, trial("own_bad", 100))
    detector.terms = DetectorTerms(QuarantineConfig(reference_share=0.1), {"m": "standard"})
    try_(detector, trial("own_bad", 1, own_share=0.9))
    assert detector.view()[0]["trials"] == {"own": 1, "reference": 0}


def test_an_advisory_begins_a_window_because_it_changes_the_bets_and_holds_until_that_ends() -> None:
    detector = make()
    try_(detector, trial("own_bad", 100))
    try_(detector, trial("own_bad", 1, suspected=True))
    try_(detector, trial("own_bad", 1, suspected=False))
    (row,) = detector.view()
    assert (row["trials"], row["suspected"]) == ({"own": 2, "reference": 0}, True)


def test_a_fault_that_comes_late_is_found() -> None:
    detector = make(window=400)
    for _ in range(55):
        assert try_(detector, *SOUND) == []
    found = [number for number in range(10) if try_(detector, *WORSE)]
    assert found
    assert found[0] <= 2


def test_a_window_ends_with_so_many_answers_of_the_reference() -> None:
    detector = make(window=400)
    counted = []
    for _ in range(41):
        try_(detector, trial("own_good", 490), trial("reference_good", 10))
        counted.append(detector.view()[0]["trials"]["reference"])
    assert max(counted) >= 390
    assert counted.count(0) == 1


# Status


def test_a_quarantined_pool_that_is_still_bad_stays_out() -> None:
    detector = out()
    rng = np.random.default_rng(7)
    for _ in range(40):
        bad = int(rng.binomial(100, 0.1))
        trials = [trial(kind, n, own_share=PROBED_FIRST) for kind, n in (("own_bad", bad), ("own_good", 100 - bad))]
        try_(detector, *trials, trial("reference_good", 100, own_share=PROBED_FIRST))
    assert is_out(detector)


def test_a_cured_pool_returns_within_the_stated_number_of_probes() -> None:
    detector = out()
    assert try_(detector, *CURED) == ["open"]
    assert not is_out(detector)


def test_a_cured_pool_returns_although_the_model_itself_is_weak() -> None:
    detector, rng = out(), np.random.default_rng(3)
    for _ in range(300):
        own, reference = (int(rng.binomial(10, 0.2)) for _ in range(2))
        numbers = {"own_bad": own, "own_good": 10 - own, "reference_bad": reference, "reference_good": 10 - reference}
        try_(detector, *[trial(kind, n, own_share=PROBED_FIRST) for kind, n in numbers.items()])
    assert not is_out(detector)


def test_a_pool_that_is_still_worse_returns_at_most_as_often_as_stated() -> None:
    runs, returned = 100, 0
    for seed in range(runs):
        detector, rng = out(), np.random.default_rng([seed, 2])
        for _ in range(50):
            own = int(rng.binomial(20, 0.25))
            reference = int(rng.binomial(20, 0.2))
            numbers = {"own_bad": own, "own_good": 20 - own, "reference_bad": reference,
                       "reference_good": 20 - reference}  # fmt: skip
            if try_(detector, *[trial(kind, n, own_share=PROBED_FIRST) for kind, n in numbers.items()]):
                returned += 1
                break
    assert returned <= binomial_bound(runs, 0.05, 1e-6)


def test_trials_that_were_drawn_before_a_pool_was_taken_out_do_not_bring_it_back() -> None:
    detector = out()
    for _ in range(20):
        try_(detector, *SOUND)
    assert is_out(detector)


def restored(detector: Detector) -> Detector:
    other = make()
    other.restore(json.loads(json.dumps(detector.as_dict())))
    return other


def test_state_survives_a_restart_as_plain_values() -> None:
    detector = out()
    try_(detector, trial("own_bad", 3, own_share=PROBED_FIRST))
    detector.absorb([OutcomeCount(FAST, Outcome.TRUNCATED, 7)], 1.0)
    other = restored(detector)
    assert other.as_dict() == detector.as_dict()
    assert other.view() == detector.view()
    assert is_out(other)
    with pytest.raises(ValueError, match="version"):
        other.restore({"version": 99, "entries": []})


def test_classes_models_and_modes_are_judged_apart() -> None:
    detector = make()
    others = [FAST._replace(request_class="tools_forced"), FAST._replace(speculative=False)]
    try_(detector, *WORSE, *[each._replace(cell=cell, trials=each.trials // 10) for cell in others for each in WORSE])
    assert set(detector.quarantined()) == {FAST}


def test_the_reference_itself_is_never_taken_out() -> None:
    detector = make()
    assert try_(detector, *[each._replace(cell=SAFE) for each in WORSE]) == []


def test_the_order_within_a_batch_says_nothing() -> None:
    batch = (trial("own_bad", 400), trial("own_good", 40_000), trial("reference_bad", 12), trial("reference_good", 800))
    for order in (batch, batch[::-1]):
        assert try_(make(), *order) == [], "400 failures in a row would be an alarm"


@pytest.mark.parametrize(("action", "status", "held"), [("quarantine", "quarantined", True), ("pin", "open", True)])
def test_what_an_operator_quarantines_or_pins_only_an_operator_changes(action, status, held) -> None:  # type: ignore[no-untyped-def]
    detector = make()
    change = detector.order(FAST, action, "new drafter", 1.0)
    assert (change.status, change.held, change.by) == (status, held, "operator")
    assert try_(detector, *WORSE) == try_(detector, *CURED) == []
    assert is_out(detector) == (status == "quarantined")
    change = detector.order(FAST, "lift", "proven", 2.0)
    assert (change.status, change.held) == ("open", False)
    assert try_(detector, *WORSE) == ["quarantined"], "it is judged again"


def test_after_an_order_counting_begins_anew() -> None:
    detector = make()
    try_(detector, trial("own_bad", 100), trial("reference_good", 1))
    detector.order(FAST, "lift", "new drafter", 2.0)
    assert detector.view()[0]["trials"] == {"own": 0, "reference": 0}


def test_a_finding_tells_the_figures_or_the_operators_reason() -> None:
    detector = out()
    finding = detector.quarantined()[FAST]
    assert finding.basis == "measured n=1000"
    assert "490 of 980 answers bad, and 0 of 20 of the reference pool's" in finding.why
    detector.order(FAST, "quarantine", "incident 17", 3.0)
    assert detector.quarantined() == {FAST: QuarantineReason("incident 17", "operator")}


def test_operators_see_rates_bounds_outcomes_and_trials() -> None:
    detector = make()
    counts = [OutcomeCount(FAST, Outcome.INVALID_JSON, 1), OutcomeCount(SAFE, Outcome.CLEAN, 1)]
    detector.absorb(counts, 0, [trial("own_bad", 1, suspected=True)])
    fast, safe = detector.view()
    assert fast["outcomes"] == {"invalid_json": 1}
    assert fast["bad_rate_at_least"] <= 1.0 <= fast["bad_rate_at_most"]
    assert (fast["clean_rate"], fast["suspected"], fast["reference"]) == (0.0, True, False)
    assert (safe["clean_rate"], safe["suspected"], safe["reference"]) == (1.0, False, True)
    assert (fast["trials"], safe["trials"]) == ({"own": 1, "reference": 0}, {"own": 0, "reference": 0})


def test_terms_can_change_while_it_works() -> None:
    detector = make()
    detector.terms = DetectorTerms(QuarantineConfig(), {})
    assert try_(detector, *WORSE) == []
    detector.terms = DetectorTerms(QuarantineConfig(), {"m": "standard"})
    assert try_(detector, *WORSE) == ["quarantined"]


def test_rates_are_those_of_the_latest_answers() -> None:
    detector = make()
    for _ in range(RECENT // 100 + 1):
        detector.absorb([OutcomeCount(FAST, Outcome.TRUNCATED, 100)], 0)
    detector.absorb([OutcomeCount(FAST, Outcome.CLEAN, 100)], 0)
    assert detector.view()[0]["answers"] == 200


batches = st.lists(st.tuples(st.sampled_from(TrialCounts._fields), st.integers(1, 30)))


@given(batches, st.integers(100, 200))
def test_no_trial_is_lost_within_a_window(batch: list[tuple[str, int]], window: int) -> None:
    detector, seen = make(window=window, alpha=1e-300), TrialCounts()
    for kind, number in batch:
        try_(detector, trial(kind, number))
        seen += TrialCounts(**{kind: number})
        if seen.reference >= window:
            return
        (row,) = detector.view()
        assert row["trials"] == {"own": seen.own, "reference": seen.reference}
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
    (change,) = out().changes()
    assert (change.cell, change.status, change.by, change.answers) == (FAST, "quarantined", "test", 1000)


def counted(clean: int, bad: int, cell: Cell = FAST) -> list[OutcomeCount]:
    return [OutcomeCount(cell, str(Outcome.CLEAN), clean), OutcomeCount(cell, str(Outcome.TRUNCATED), bad)]


class TestCleanCells:
    @pytest.mark.parametrize(
        ("clean", "bad", "found"), [(300, 0, True), (1000, 5, True), (100, 0, False), (1000, 25, False), (0, 0, False)]
    )
    def test_a_cell_is_clean_once_few_bad_answers_are_certain(self, clean: int, bad: int, *, found: bool) -> None:
        detector = make()
        detector.absorb(counted(clean, bad), 0.0)
        assert (FAST in detector.clean()) == found

    def test_a_clean_cell_stays_so_while_its_counting_begins_anew(self) -> None:
        detector = make()
        detector.absorb(counted(RECENT, 0)[:1], 0.0)
        before = detector.clean()
        detector.absorb(counted(10, 0), 1.0)
        assert FAST not in detector.clean()
        assert FAST in detector.clean(before)
        detector.absorb(counted(0, 1), 2.0)
        assert FAST not in detector.clean(before)

    def test_a_cell_in_quarantine_is_not_clean(self) -> None:
        detector = make()
        detector.absorb(counted(1000, 0), 0.0)
        detector.order(FAST, "quarantine", "because", 1.0)
        assert FAST not in detector.clean(detector.clean())
