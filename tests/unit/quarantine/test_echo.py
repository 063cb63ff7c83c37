"""Copied identifiers as evidence: rare corruption is found soon, sound pools are left alone, what is out comes back."""

import json
from random import Random
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from policies import Cell, PolicySettings, PoolFacts, RequestFeatures, compile_policy, decide, quarantine
from policies.classes import copying_classes
from policies.quarantine import mask_of_class
from serve.config.quarantine import QuarantineConfig
from serve.quarantine.detector import ECHO, Detector, DetectorTerms, EchoCount, parsed

FAST, SLOW = ("m", "fast", True), ("m", "slow", False)
MOST = 3200
CELL = Cell("m", "fast", True, "tools_auto")


def make() -> Detector:
    return Detector(DetectorTerms(QuarantineConfig(), {"m": "slow"}))


def copied(key: tuple[str, str, bool], corrupted: int = 0, identifiers: int = 8, build: str = "1") -> EchoCount:
    return EchoCount(*key, build, identifiers, corrupted)


def sound(key: tuple[str, str, bool], build: str = "1") -> EchoCount:
    return copied(key, identifiers=MOST, build=build)


def out() -> Detector:
    detector = make()
    detector.absorb((), 1.0, echoes=[sound(SLOW), copied(FAST, 3, 800)])
    assert CELL in detector.quarantined()
    return detector


def found_after(chance: Random, rate: float, standard: float = 0.0, known: bool = False) -> int | None:
    """After how many of `MOST` identifiers a pool with this rate is out, as eight are counted at a time."""
    detector = make()
    if known:
        detector.absorb((), 1.0, echoes=[sound(SLOW)])
    for number in range(1, MOST // 8 + 1):
        rates = ((FAST, rate), (SLOW, standard))
        counts = [copied(key, sum(chance.random() < each for _ in range(8))) for key, each in rates]
        detector.absorb((), 1.0, echoes=counts)
        if detector.quarantined():
            return 8 * number
    return None


def test_three_of_a_thousand_are_found_within_3200_identifiers() -> None:
    chance = Random(5)
    for known in (False, True):
        found = [found_after(chance, 0.003, known=known) for _ in range(150)]
        assert sum(each is None for each in found) <= 2
        assert sorted(each or MOST for each in found)[75] < (1200 if known else 3100)


def test_one_of_ten_is_found_within_a_hundred_though_nothing_is_known_of_the_reference() -> None:
    chance = Random(5)
    assert sorted(found_after(chance, 0.1) or MOST for _ in range(60))[45] < 200


def test_a_sound_pool_is_left_alone() -> None:
    chance = Random(5)
    assert [found_after(chance, 3e-6) for _ in range(60)] == [None] * 60


@pytest.mark.parametrize("rate", [0.001, 0.003, 0.02, 0.3])
def test_a_model_that_can_not_copy_condemns_no_pool(rate: float) -> None:
    chance = Random(5)
    assert [found_after(chance, rate, standard=rate) for _ in range(60)].count(None) >= 58


def test_all_classes_that_copy_names_are_out_and_nothing_else() -> None:
    cells = out().quarantined()
    assert {cell[:3] for cell in cells} == {FAST}
    assert {cell.request_class for cell in cells} == set(copying_classes())
    assert all(mask_of_class(name) for name in copying_classes())


def test_nothing_is_concluded_before_the_reference_was_asked_as_well() -> None:
    detector = make()
    detector.absorb((), 1.0, echoes=[copied(FAST, 4, 40)])
    assert not detector.quarantined()
    detector.absorb((), 1.0, echoes=[copied(SLOW, identifiers=80)])
    assert CELL in detector.quarantined()


def test_what_is_out_comes_back_once_it_is_certainly_sound() -> None:
    detector = out()
    detector.absorb((), 2.0, echoes=[copied(FAST, identifiers=800, build="2")])
    assert CELL in detector.quarantined()
    (change,) = detector.absorb((), 3.0, echoes=[sound(FAST, build="2")])
    assert (change.status, change.by, change.cell.request_class) == ("open", "echo", ECHO)
    assert not detector.quarantined()


def test_another_build_begins_anew() -> None:
    detector = make()
    detector.absorb((), 1.0, echoes=[sound(SLOW), copied(FAST, 1, 800), copied(FAST, 1, 800, build="2")])
    assert not detector.quarantined()
    assert detector.echo_build(FAST) == ("2", False)
    assert detector.echo_build(SLOW) == ("1", True)


def test_an_operators_pin_outranks_it() -> None:
    detector = out()
    detector.order(CELL, "pin", "we know", 2.0)
    assert CELL not in detector.quarantined()
    assert CELL._replace(request_class="json_object") in detector.quarantined()


def test_it_is_shown_kept_and_restored() -> None:
    detector = out()
    (row,) = (row for row in detector.view() if (row["pool"], row["request_class"]) == ("fast", ECHO))
    assert (row["status"], row["by"], row["why"]) == ("quarantined", "echo", "3 of 800 identifiers came out changed")
    other = make()
    other.restore(parsed(json.dumps({**detector.as_dict(), "revision": 1, "reports": {}}).encode()))
    assert other.quarantined() == detector.quarantined()
    old: dict[str, Any] = {**detector.as_dict(), "version": 5}
    del old["echoes"]
    other.restore(parsed(json.dumps(old).encode()))
    assert not other.quarantined()


def test_no_request_probes_a_pool_whose_answers_only_look_right() -> None:
    facts = [PoolFacts("m", "fast", "sim", method="sim", engine="sim"), PoolFacts("m", "slow", "sim", engine="sim")]
    policy = compile_policy(facts, [], PolicySettings())
    decision = decide(quarantine(policy, out().quarantined()), RequestFeatures("m", tools=1, tool_choice="auto"), None)
    assert (decision.pool, decision.suspended, decision.evidence) == ("slow", (), "echo")


@given(st.lists(st.tuples(st.sampled_from([FAST, SLOW]), st.integers(0, 8), st.sampled_from("12")), max_size=40))
def test_whatever_is_counted_the_state_survives_and_the_reference_stays(counts: list[Any]) -> None:
    detector, other = make(), make()
    for key, corrupted, build in counts:
        detector.absorb((), 1.0, echoes=[copied(key, corrupted, build=build)])
        assert not any(cell.pool == "slow" for cell in detector.quarantined())
    other.restore(parsed(json.dumps(detector.as_dict()).encode()))
    assert other.as_dict() == detector.as_dict()
    assert other.view() == detector.view()


@pytest.mark.parametrize("names", [copying_classes()])
def test_the_classes_are_those_with_calls_or_json(names: tuple[str, ...]) -> None:
    assert len(set(names)) == len(names) == 32
    assert all("tools" in name or "json" in name for name in names)
