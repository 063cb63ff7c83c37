"""Plans: every split is tried from few GPUs to many, and the cheapest that serves is the answer."""

import dataclasses
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from lab.plan.variants import Split, Targets, assumptions, draft_lengths, gpus_of, planned, splits
from lab.simulation.request import SimRequest
from lab.simulation.site import default_config
from lab.simulation.traffic import Traffic


def traffic(count: int, every_s: float, kind: str = "tools") -> Traffic:
    return Traffic([SimRequest(n * every_s, f"s{n}", kind, 300, 200) for n in range(count)])


@given(st.integers(1, 20), st.integers(1, 8), st.integers(1, 8))
def test_splits_spend_all_gpus_and_no_more(gpus: int, fast: int, plain: int) -> None:
    found = list(splits(gpus, {True: fast, False: plain}, (2, 4)))
    assert len(set(found)) == len(found)
    assert all(each.speculative * fast + each.standard * plain == gpus for each in found)
    assert all((each.drafts in (2, 4)) == (each.speculative > 0) for each in found)


def test_a_model_with_one_kind_of_pool_has_splits_of_that_kind_alone() -> None:
    assert list(splits(2, {False: 1}, (3,))) == [Split(0, 2, 0)]
    assert {each.standard for each in splits(2, {True: 2}, (3,))} == {0}
    assert list(splits(3, {True: 2}, (3,))) == []


def test_light_traffic_needs_one_gpu_and_a_drafter_only_where_time_per_token_is_short() -> None:
    config = default_config(seats=16)
    slow = planned(traffic(20, 1.0), config, Targets(), 4)
    assert slow["best"]["gpus"] == 1
    fast = planned(traffic(20, 1.0), config, Targets(tpot_p99_ms=4.0), 4)
    assert (fast["best"]["gpus"], fast["best"]["speculative"]) == (1, 1)
    assert not next(row for row in fast["variants"] if row["standard"] == 1)["serves"]


def test_heavy_traffic_needs_more_and_what_nothing_serves_has_no_plan() -> None:
    config = default_config(seats=4)
    report = planned(traffic(200, 0.05), config, Targets(ttft_p99_ms=300), 8)
    assert report["best"]["gpus"] > 1
    assert all(not row["serves"] for row in report["variants"] if row["gpus"] < report["best"]["gpus"])
    assert planned(traffic(50, 0.01), config, Targets(ttft_p99_ms=0.001), 2)["best"] is None


def test_what_the_policy_keeps_off_the_drafter_is_not_planned_there() -> None:
    config = default_config(seats=16, forbidden=["tools"])
    report = planned(traffic(10, 1.0), config, Targets(tpot_p99_ms=1000), 1)
    assert all(row["refused"] == 10 and not row["serves"] for row in report["variants"] if row["speculative"])
    assert report["best"]["standard"] == 1


def test_overrides_of_other_models_and_of_pools_that_a_variant_lacks_are_no_obstacle() -> None:
    given = default_config(seats=16, forbidden=["tools"])
    (override,) = given.policy.overrides
    elsewhere = dataclasses.replace(override, model="other")
    overrides = (override, elsewhere, dataclasses.replace(override, model="m"))
    policy = given.policy.model_copy(update={"overrides": overrides})
    config = given.model_copy(update={"models": {**given.models, "other": given.models["m"]}, "policy": policy})
    report = planned(traffic(10, 1.0), config, Targets(tpot_p99_ms=1000), 1)
    assert report["best"]["standard"] == 1
    assert all(row["refused"] == 10 for row in report["variants"] if row["speculative"])


def test_draft_lengths_are_those_of_the_table_and_the_one_that_is_configured() -> None:
    assert draft_lengths(default_config(drafts=3)) == [1, 3, 5]
    config = default_config(drafts=2)
    assert draft_lengths(config) == [1, 2, 3, 5]
    pool = config.models["m"].pools["speculative"]
    table = {"drafts": [0, 4], "batches": [1, 8], "step_ms": [[6, 7], [9, 12]]}
    pool = pool.model_copy(update={"sim": {**pool.sim, "economics": {"step_times": table}}})
    pools = {**config.models["m"].pools, "speculative": pool}
    measured = config.model_copy(update={"models": {"m": config.models["m"].model_copy(update={"pools": pools})}})
    assert draft_lengths(measured) == [2, 4]
    assert any("draft lengths tried: 2, 4;" in line for line in assumptions(measured, Targets()))


def test_a_plan_says_which_pools_the_model_lacks() -> None:
    config = default_config()
    assert not any("no such pool" in line for line in assumptions(config, Targets()))
    pools = {"standard": config.models["m"].pools["standard"]}
    alone = config.model_copy(update={"models": {"m": config.models["m"].model_copy(update={"pools": pools})}})
    assert "m gets no replica with a drafter, since it has no such pool" in assumptions(alone, Targets())


def test_a_replica_takes_as_many_gpus_as_its_engine_s_parallelism() -> None:
    config = default_config()
    assert gpus_of(config.models["m"], "standard") == 1


def test_of_splits_with_equally_many_gpus_the_one_that_uses_least_of_both_targets_is_the_answer() -> None:
    targets = Targets(tpot_p99_ms=100)
    report = planned(traffic(20, 1.0), default_config(seats=16), targets, 1)

    def used(row: dict[str, Any]) -> float:
        return float(row["ttft_ms"]["p99"] / targets.ttft_p99_ms + row["tpot_ms"]["p99"] / targets.tpot_p99_ms)

    assert len(report["variants"]) > 2
    assert report["best"] == min(report["variants"], key=used)
    assert any("least of both targets" in line for line in assumptions(default_config(seats=16), targets))
