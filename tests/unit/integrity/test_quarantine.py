"""Clean-rates: sound bounds, quarantine by difference at its stated false-alarm rate, probes, return, persistence."""

import json
from random import Random

import pytest

from serve.integrity import Outcome, Verdict
from serve.integrity.bounds import SUSPECTED, UNSUSPECTED, lower_bound, upper_bound
from serve.integrity.quarantine import Change, Key, Quarantine, QuarantineSettings

FAST = Key("m", "fast", "tools_auto")
SAFE = Key("m", "safe", "tools_auto")
BAD, GOOD = Verdict(Outcome.INVALID_JSON), Verdict(Outcome.CLEAN)


def judge(suspected: bool = False, **options: float) -> Quarantine:
    return Quarantine(QuarantineSettings(**options), {"m": "safe"}, lambda key: suspected)  # type: ignore[arg-type]


def run(quarantine: Quarantine, rng: Random, bad_rates: dict[Key, float], rounds: int) -> tuple[int, Change] | None:
    """Count answers of every pool in turn; the round of the first change and the change."""
    for number in range(rounds):
        for key, rate in bad_rates.items():
            if change := quarantine.record(key, BAD if rng.random() < rate else GOOD, now_s=number):
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
        alarms += run(judge(alpha=0.05), Random(seed), rates, 1000) is not None
    assert alarms <= 0.05 * runs


@pytest.mark.parametrize(("rate", "within"), [(0.5, 100), (0.1, 400), (0.03, 1900)])
def test_a_worse_pool_is_quarantined_within_the_stated_number_of_answers(rate: float, within: int) -> None:
    for seed in range(10):
        found = run(judge(), Random(seed), {FAST: rate, SAFE: 0.0}, within)
        assert found is not None
        assert found[1].key == FAST
        assert found[1].status == "quarantined"
        assert "at least" in found[1].why


def test_without_any_answer_of_the_reference_nobody_is_judged() -> None:
    assert run(judge(), Random(0), {FAST: 0.5}, 500) is None


def test_a_suspected_pool_is_caught_no_later() -> None:
    for seed in range(10):
        plain = run(judge(), Random(seed), {FAST: 0.4, SAFE: 0.0}, 400)
        suspected = run(judge(suspected=True), Random(seed), {FAST: 0.4, SAFE: 0.0}, 400)
        assert plain is not None
        assert suspected is not None
        assert suspected[0] <= plain[0]


def test_a_fault_that_comes_late_is_not_hidden_by_a_long_clean_record() -> None:
    quarantine = judge(window=500)
    rng = Random(0)
    assert run(quarantine, rng, {FAST: 0.0, SAFE: 0.0}, 5100) is None
    found = run(quarantine, rng, {FAST: 0.3, SAFE: 0.0}, 600)
    assert found is not None


def test_a_quarantined_pool_is_probed_and_returns_by_the_same_test() -> None:
    quarantine, rng = judge(), Random(0)
    run(quarantine, rng, {FAST: 0.5, SAFE: 0.0}, 500)
    assert quarantine.status(FAST) == "quarantined"
    probes = sum(quarantine.allows(FAST, rng.random()) for _ in range(10_000))
    assert 100 < probes < 300
    assert run(quarantine, rng, {FAST: 0.5}, 500) is None, "it is still bad"


def test_a_cured_pool_returns_within_the_stated_number_of_probes() -> None:
    quarantine, rng = judge(), Random(0)
    run(quarantine, rng, {FAST: 0.5, SAFE: 0.0}, 500)
    found = run(quarantine, rng, {FAST: 0.0}, 150)
    assert found is not None
    assert found[1].status == "open"
    assert quarantine.allows(FAST, 1.0)


def test_a_pool_that_is_still_worse_rarely_returns() -> None:
    returned = 0
    for seed in range(40):
        quarantine, rng = judge(), Random(seed)
        run(quarantine, rng, {FAST: 0.5, SAFE: 0.0}, 500)
        returned += run(quarantine, rng, {FAST: 0.06}, 2000) is not None
    assert returned <= 2


def judge_with_state(quarantine: Quarantine) -> Quarantine:
    other = judge()
    other.restore(json.loads(json.dumps(quarantine.as_dict())))
    return other


def test_state_survives_a_restart_as_plain_values() -> None:
    quarantine = judge()
    run(quarantine, Random(0), {FAST: 0.5, SAFE: 0.0}, 500)
    other = judge_with_state(quarantine)
    assert other.as_dict() == quarantine.as_dict()
    assert other.status(FAST) == "quarantined"
    with pytest.raises(ValueError, match="version"):
        other.restore({"version": 99, "entries": []})


def test_answers_that_do_not_count_are_not_counted() -> None:
    quarantine = judge()
    assert quarantine.record(FAST, Verdict(Outcome.TRUNCATED, counts=False), 0) is None
    assert quarantine.view() == []


def test_classes_and_models_are_judged_apart() -> None:
    quarantine = judge()
    run(quarantine, Random(0), {FAST: 0.5, SAFE: 0.0}, 500)
    assert quarantine.status(FAST._replace(request_class="json_schema")) == "open"
    assert quarantine.status(FAST._replace(model="other")) == "open"


def test_an_operators_quarantine_is_lifted_by_an_operator_only() -> None:
    quarantine, rng = judge(), Random(0)
    quarantine.set_status(FAST, "quarantined", "new drafter", 1.0)
    assert run(quarantine, rng, {FAST: 0.0, SAFE: 0.0}, 3000) is None
    assert quarantine.status(FAST) == "quarantined"
    change = quarantine.set_status(FAST, "open", "proven", 2.0)
    assert (change.by, quarantine.status(FAST)) == ("operator", "open")


def test_replicas_share_through_a_judge_and_go_on_alone_without_it() -> None:
    shared, replicas, rng = judge(), [judge(), judge()], Random(0)
    changes: list[Change] = []
    for _ in range(10):
        for replica in replicas:
            run(replica, rng, {FAST: 0.5, SAFE: 0.0}, 10)
            changes += shared.absorb(replica.take_pending(), now_s=0)
        for replica in replicas:
            replica.restore(shared.as_dict())
    assert [change.key for change in changes] == [FAST]
    assert all(replica.status(FAST) == "quarantined" for replica in replicas)
    assert run(judge(), rng, {FAST: 0.5, SAFE: 0.0}, 200) is not None, "a replica alone finds it too"


def test_what_was_not_yet_sent_is_kept_when_the_shared_state_arrives() -> None:
    shared, replica = judge(), judge()
    replica.record(FAST, BAD, 0)
    shared.absorb(replica.take_pending(), 0)
    replica.record(FAST, GOOD, 0)
    replica.restore(shared.as_dict())
    assert replica.view()[0]["answers"] == 2
    assert replica.take_pending() == [["m", "fast", "tools_auto", "clean", 1]]


def test_operators_see_rates_bounds_and_outcomes() -> None:
    quarantine = judge()
    quarantine.record(FAST, BAD, 0)
    (shown,) = quarantine.view()
    assert shown["outcomes"] == {"invalid_json": 1}
    assert shown["bad_rate_at_least"] <= 1.0 <= shown["bad_rate_at_most"]
    assert shown["evidence"] == "measured"
