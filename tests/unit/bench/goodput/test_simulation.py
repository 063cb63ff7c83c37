"""The simulated engine keeps to its own table, and the arms to what they claim."""

import pytest

from bench.goodput import simulation
from bench.goodput.arms import SPECULATIVE, STANDARD
from bench.goodput.engine import Engine, Request
from bench.goodput.simulation import Setting, play
from bench.goodput.traffic import LOADS, TOOLS, Load
from policies.load_model import PREFILL_TOKENS_PER_S, PUBLISHED

SHORT = Setting(seats=64, duration_s=15.0)


def by_name(name: str) -> Load:
    return next(load for load in LOADS if load.name == name)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_a_full_batch_takes_the_table_s_time_a_step(batch: int, drafts: int) -> None:
    engine = Engine(PUBLISHED, drafts, 64)
    for number in range(batch):
        engine.submit(Request("prose", 1000, 0, number, 0.0), 0.0, 2.0)
    steps = 1000 / 2.0
    assert engine.next_end_s() / steps == pytest.approx(PUBLISHED.at(batch, drafts), rel=0.02)


def test_a_request_beyond_the_seats_waits_for_the_first_to_end() -> None:
    engine = Engine(PUBLISHED, 0, 1)
    one, two = (Request("prose", 100, 0, number, 0.0) for number in range(2))
    engine.submit(one, 0.0, 1.0)
    engine.submit(two, 0.0, 1.0)
    end_s = engine.next_end_s()
    assert engine.finish(end_s) is one
    assert two.first_s > end_s
    assert engine.next_end_s() == pytest.approx(2 * end_s)


def test_a_turn_prefills_what_its_replica_has_not_cached() -> None:
    engine = Engine(PUBLISHED, 0, 1)
    for prompt, missing in ((1000, 1000), (1500, 1500 - 1100)):
        now_s = engine._at_s
        request = Request("prose", 100, prompt, 7, now_s)
        engine.submit(request, now_s, 1.0)
        waited_s = missing / PREFILL_TOKENS_PER_S + PUBLISHED.at(1, 0)
        assert request.first_s - now_s == pytest.approx(waited_s)
        engine.finish(engine.next_end_s())


def test_one_seed_is_one_outcome() -> None:
    load = by_name("drift")
    assert play(load, "load ranking", 3, SHORT) == play(load, "load ranking", 3, SHORT)
    assert play(load, "load ranking", 3, SHORT) != play(load, "load ranking", 4, SHORT)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_load_ranking_is_near_the_oracle_and_never_below_a_static_arm(load: Load, seed: int) -> None:
    tokens = {
        arm: play(load, arm, seed, SHORT).tokens
        for arm in ("load ranking", "two gateways", "oracle", "speculative first", "standard only")
    }
    assert tokens["two gateways"] >= 0.9 * tokens["oracle"]
    assert tokens["load ranking"] >= 0.93 * tokens["oracle"]
    assert tokens["load ranking"] >= 0.95 * max(tokens["speculative first"], tokens["standard only"])


@pytest.mark.parametrize("arm", ["load ranking", "oracle", "class rule", "two choices"])
def test_what_the_advisories_forbid_is_never_served_by_the_drafter(arm: str, monkeypatch: pytest.MonkeyPatch) -> None:
    served: set[tuple[str, str]] = set()
    monkeypatch.setattr(simulation, "_count", lambda _, request, now_s: served.add((request.kind, request.pool)))
    play(by_name("tools forbidden"), arm, 1, SHORT)
    assert (TOOLS, STANDARD) in served
    assert (TOOLS, SPECULATIVE) not in served
