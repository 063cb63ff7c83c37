"""The arms under closed-loop users keep to what they claim."""

import pytest

from bench.goodput.loads import LOADS, Load
from bench.goodput.runs import ALL_ARMS, play_load, two_pools
from lab.simulation.request import TOOLS

SHORT = two_pools(1, 1, 64, 15.0)
LONG = two_pools(1, 1, 64, 120.0)  # a change is learned within half a minute


def by_name(name: str) -> Load:
    return next(load for load in LOADS if load.name == name)


def tokens(load: Load, arm: str, seed: int) -> int:
    return play_load(load, ALL_ARMS[arm], seed, LONG if load.changes_at else SHORT).tokens


def test_one_seed_is_one_outcome() -> None:
    load = by_name("drift")
    assert tokens(load, "specgate", 3) == tokens(load, "specgate", 3)
    assert tokens(load, "specgate", 3) != tokens(load, "specgate", 4)


@pytest.mark.parametrize("seed", [11, 12])
@pytest.mark.parametrize("load", LOADS, ids=lambda load: load.name)
def test_the_load_ranking_is_near_the_oracle_and_never_below_a_static_arm(load: Load, seed: int) -> None:
    oracle = max(tokens(load, "oracle", seed), tokens(load, "faithful oracle", seed))
    ours = tokens(load, "specgate", seed)
    assert ours >= 0.93 * oracle
    assert ours >= 0.95 * max(tokens(load, arm, seed) for arm in ("speculative_first", "standard_only"))
    assert tokens(load, "two_gateways", seed) >= 0.9 * oracle


@pytest.mark.parametrize("arm", ALL_ARMS)
def test_what_the_policy_forbids_is_never_served_by_the_drafter(arm: str) -> None:
    outcome = play_load(by_name("tools forbidden"), ALL_ARMS[arm], 1, SHORT)
    served = {(request.kind, request.candidate and request.candidate.pool) for request in outcome.requests}
    assert outcome.forbidden == 0
    assert (TOOLS, "standard") in served
    assert (TOOLS, "speculative") not in served
