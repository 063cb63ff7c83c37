"""Rates and quantiles of the last half hour, from counters that begin anew and go away."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.admin.history import PERIOD_S, History, quantile, speculated, tokens_a_step
from serve.admin.merged_metrics import COUNTERS, GAUGES, figures


def snapshot(requests: int, errors: int = 0, fast: int = 0, slow: int = 0, held: int = 0) -> dict[str, object]:
    pool = {"model": "m", "pool": "p"}
    bucket = "specgate_time_to_first_token_seconds_bucket"
    return {
        "pools": [{**pool, "held": held, "waiting": 1}],
        "samples": [
            ("specgate_requests_total", {**pool, "speculative": "on", "status": "200"}, requests),
            ("specgate_requests_total", {**pool, "speculative": "on", "status": "502"}, errors),
            ("specgate_requests_total", {"model": "", "pool": "", "speculative": "", "status": "404"}, 1000),
            ("specgate_decisions_total", {**pool, "reason": "quarantine"}, requests),
            (bucket, {**pool, "le": "0.1"}, fast),
            (bucket, {**pool, "le": "1"}, fast + slow),
            (bucket, {**pool, "le": "+Inf"}, fast + slow),
        ],
    }


def test_what_was_counted_before_the_first_look_belongs_to_no_period() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(500)})
    history.add(5.0, {"a": snapshot(510, errors=2)})
    pool = history.window().pools["m", "p"]
    assert (pool.requests, pool.errors) == (12, 2)
    assert history.series()["requests"] == [0, 12 / PERIOD_S]


def test_replicas_add_up_and_one_that_comes_or_goes_makes_no_jump() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(100), "b": snapshot(200)})
    history.add(5.0, {"a": snapshot(101), "b": snapshot(202), "c": snapshot(900)})
    history.add(10.0, {"a": snapshot(102), "c": snapshot(903)})
    assert history.window().pools["m", "p"].requests == 1 + 2 + 1 + 3
    assert history.window().decisions["quarantine"] == 7


def test_a_replica_that_comes_back_with_smaller_counters_counts_nothing_below_zero() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(100)})
    history.add(5.0, {"a": snapshot(3)})
    assert history.window().pools["m", "p"].requests == 3


def test_tenants_use_tokens_by_kind_and_are_refused() -> None:
    def used(output: int, refused: int) -> dict[str, object]:
        samples = [
            ("specgate_tokens_total", {"tenant": "a", "model": "m", "kind": "output"}, output),
            ("specgate_tokens_total", {"tenant": "a", "model": "n", "kind": "output"}, output),
            ("specgate_limits_refused_total", {"tenant": "a", "limit": "concurrency", "mode": "enforced"}, refused),
        ]
        return {"pools": [], "samples": samples}

    history = History()
    history.add(0.0, {"r": used(100, 1)})
    history.add(5.0, {"r": used(110, 4)})
    assert history.window().tenants == {"a": {"output": 20, "refused": 3}}


def test_the_window_is_the_last_minute() -> None:
    history = History()
    for number in range(30):
        history.add(number * PERIOD_S, {"a": snapshot(number)})
    assert history.window().pools["m", "p"].requests == 12
    assert history.window_s == 60


def test_half_an_hour_is_kept() -> None:
    history = History()
    for number in range(500):
        history.add(number * PERIOD_S, {"a": snapshot(number)})
    assert len(history.series(("m", "p"))["at_s"]) == 360
    assert history.series(("m", "other"))["held"][-1] == 0


@pytest.mark.parametrize(("share", "expected"), [(0.5, 0.1), (0.75, 0.55), (1.0, 1.0)])
def test_a_quantile_lies_between_the_bounds_of_its_bucket(share: float, expected: float) -> None:
    assert quantile({0.1: 50, 1.0: 50}, share) == pytest.approx(expected)


def test_a_quantile_above_all_bounds_is_the_highest_of_them_and_of_nothing_is_none() -> None:
    assert quantile({1.0: 1, float("inf"): 9}, 0.95) == 1.0
    assert quantile({}, 0.5) is None


def test_times_to_the_first_token_are_those_of_the_window() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0, fast=10)})
    history.add(5.0, {"a": snapshot(0, fast=10, slow=10)})
    assert history.window().pools["m", "p"].first_tokens == {1.0: 10}


def drafted(drafts: int, accepted: int) -> dict[tuple[tuple[str, str], str], dict[str, float]]:
    return {(("m", "p"), "http://e"): {"drafts": drafts, "accepted": accepted, "kv_used": 0.5}}


def test_tokens_a_step_are_those_of_the_window_whatever_an_engine_has_counted_before() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0)}, drafted(1000, 0))
    history.add(5.0, {"a": snapshot(0)}, drafted(1100, 200))
    pool = history.window().pools["m", "p"]
    assert tokens_a_step([pool]) == 3.0
    assert pool.gauges == {"kv_used": 0.5}
    assert history.series()["tokens_a_step"] == [None, 3.0]
    history.add(10.0, {"a": snapshot(0)}, drafted(10, 5))
    assert history.window().pools["m", "p"].engines["drafts"] == 110, "one that was restarted counts from nothing"


def told(*engines: tuple[float, float]) -> dict[tuple[tuple[str, str], str], dict[str, float]]:
    """Engines that tell tokens a step, and how many they have written."""
    return {
        (("m", "p"), f"http://{number}"): {"tokens_a_step": length, "written": written}
        for number, (length, written) in enumerate(engines)
    }


def test_tokens_a_step_of_a_pool_are_those_of_all_its_engines_by_what_each_has_written() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0)}, told((9.0, 500), (9.0, 0), (9.0, 50)))
    assert tokens_a_step(history.window().pools.values()) is None
    history.add(5.0, {"a": snapshot(0)}, told((2.0, 600), (1.0, 300), (0.0, 1000)))
    assert tokens_a_step(history.window().pools.values()) == round(400 / 350, 2)
    history.add(10.0, {"a": snapshot(0)}, told((2.0, 600), (1.0, 300), (0.0, 1000)))
    assert history.series()["tokens_a_step"] == [None, round(400 / 350, 2), None], "nobody drafts where nobody writes"


@given(st.lists(st.tuples(st.floats(1, 9), st.integers(1, 1000)), min_size=1, max_size=4))
def test_tokens_a_step_of_a_pool_lie_between_those_of_its_engines(engines: list[tuple[float, int]]) -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0)}, told(*[(1.0, 0) for _ in engines]))
    history.add(5.0, {"a": snapshot(0)}, told(*engines))
    found = tokens_a_step(history.window().pools.values())
    lengths = [length for length, _ in engines]
    assert found is not None
    assert min(lengths) - 0.01 <= found <= max(lengths) + 0.01


def test_an_engine_that_missed_a_period_counts_on_from_what_it_told_last() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0)}, drafted(1_000_000, 0))
    history.add(5.0, {"a": snapshot(0)}, {(("m", "p"), "http://e"): {}})
    history.add(10.0, {"a": snapshot(0)})
    history.add(15.0, {"a": snapshot(0)}, drafted(1_000_100, 200))
    pool = history.window().pools["m", "p"]
    assert pool.engines == {"drafts": 100, "accepted": 200}


def test_an_engine_that_was_silent_for_longer_than_rates_are_about_begins_anew() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(0)}, drafted(1000, 0))
    history.add(60.0, {"a": snapshot(0)}, drafted(90_000, 0))
    history.add(65.0, {"a": snapshot(0)}, drafted(90_010, 5))
    assert history.window().pools["m", "p"].engines == {"drafts": 10, "accepted": 5}


def test_a_counter_that_an_engine_did_not_tell_before_counts_from_then_on() -> None:
    history = History()
    for at_s, told in enumerate(({"written": 5}, {"written": 6, "drafts": 90_000}, {"written": 9, "drafts": 90_002})):
        history.add(at_s * PERIOD_S, {"a": snapshot(0)}, {(("m", "p"), "http://e"): told})
    assert history.window().pools["m", "p"].engines == {"written": 4, "drafts": 2}


def test_without_drafts_there_is_no_line_of_tokens_a_step() -> None:
    history = History()
    history.add(0.0, {"a": snapshot(1)})
    assert "tokens_a_step" not in history.series()
    assert tokens_a_step([]) is None
    assert speculated([]) is None


def test_failures_reruns_and_speeds_add_up_over_the_half_hour() -> None:
    def counted(number: int) -> dict[str, object]:
        answer = {"model": "m", "pool": "p", "speculative": "on", "request_class": "tools_auto"}
        return {
            "pools": [],
            "samples": [
                ("specgate_errors_total", {"model": "", "status": "404", "cause": "model_not_found"}, number),
                ("specgate_answer_tokens_total", answer, 100.0 * number),
                ("specgate_answer_seconds_total", answer, 2.5 * number),
                ("specgate_verdicts_total", answer, 3 * number),
                ("specgate_answers_total", {"model": "m"}, number),
            ],
        }

    history = History()
    for number in range(31):
        history.add(5.0 * number, {"a": counted(number)})
    assert history.window().failures["", "404", "model_not_found"] == 12
    assert history.half_hour().failures["", "404", "model_not_found"] == 30
    assert history.half_hour().reruns == 60
    speed = history.half_hour().answers["m", "on", "tools_auto"]
    assert speed.tokens / speed.seconds == 40


NUMBERS = st.from_regex(r"[0-9.eE+-]{1,8}", fullmatch=True) | st.sampled_from(["1e999", "-1e308", "1e308", "1e15"])
LINES = st.lists(st.tuples(st.sampled_from([*COUNTERS, *GAUGES]), NUMBERS).map(" ".join), max_size=6)


@given(st.lists(LINES, min_size=2, max_size=4))
def test_whatever_an_engine_of_others_counts_the_history_goes_on(told: list[list[str]]) -> None:
    history = History()
    for number, lines in enumerate(told):
        engines = {(("m", "p"), "http://engine"): figures("\n".join(lines))}
        history.add(number * PERIOD_S, {"a": snapshot(1)}, engines)
    json.dumps(history.series(), allow_nan=False)
