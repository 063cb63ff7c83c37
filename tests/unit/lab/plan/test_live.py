"""Advice on draft lengths, from what a gateway has learned of simulated engines whose best length is known."""

import json
from random import Random
from typing import Any

import pytest
import typer
from hypothesis import given
from hypothesis import strategies as st
from typer.testing import CliRunner

from lab.cli import plan
from lab.plan.live import LEAST_ANSWERS, advised, read_drafts
from lab.simulation.arms import Specgate, routing
from lab.simulation.request import PROSE, TOOLS, Drafter, SimRequest
from lab.simulation.simulation import Outcome, Recorded, play
from lab.simulation.site import Shape, Site, config_of
from policies.acceptance import Acceptance, prior_length
from serve.cli.output import FOUND
from serve.config.compiled_policy import compile_for
from serve.errors import ConfigError

DRAFTERS = {
    "good": Drafter([(0.0, {TOOLS: [0.96, 0.95, 0.94], PROSE: [0.9]})]),
    "poor": Drafter([(0.0, {TOOLS: [0.2], PROSE: [0.15]})]),
    "fair": Drafter([(0.0, {TOOLS: [0.75], PROSE: [0.6]})]),
}


def traffic(at_once: int) -> list[SimRequest]:
    """Returns requests of which about so many run at a time."""
    chance = Random(1)
    kinds = (TOOLS, PROSE)
    return [
        SimRequest(number * 1.2 / at_once, f"s{number}", kinds[number % 2], 100, chance.randint(150, 250))
        for number in range(10 * at_once + 110)
    ]


def played(drafts: int, drafter: Drafter, at_once: int) -> tuple[Outcome, Specgate]:
    """Returns what became of traffic on one engine with a draft length, and what the gateway has learned.

    The other pool is there since a policy needs one; it is never the better one in what the test compares.
    """
    config = routing(config_of({"speculative": Shape(drafts, 1, 256), "standard": Shape(0, 1, 256)}))
    site = Site(config, compile_for(config))
    arms: list[Specgate] = []

    class OnlySpeculative(Specgate):
        def order(self, request: SimRequest, decision: Any, now_s: float) -> Any:
            super().order(request, decision, now_s)
            return [one for one in decision.candidates if one.pool == "speculative"]

    def arm(*_: object) -> Specgate:
        arms.append(OnlySpeculative(site))
        return arms[0]

    return play(Recorded(traffic(at_once)), site, drafter, arm, 1), arms[0]


def time_per_token(outcome: Outcome) -> float:
    return sum((one.end_s - one.first_s) / one.output_tokens for one in outcome.requests) / len(outcome.requests)


@pytest.mark.parametrize(("name", "at_once"), [("good", 2), ("poor", 2), ("fair", 40)])
def test_the_advice_is_as_good_as_the_best_length_that_can_be_tried(name: str, at_once: int) -> None:
    _, arm = played(3, DRAFTERS[name], at_once)
    told = [{**row, "per_engine": at_once} for row in arm.load.view()]  # as it was while requests came
    (whole, *_) = advised(read_drafts(told))
    tried = {drafts: time_per_token(played(drafts, DRAFTERS[name], at_once)[0]) for drafts in (1, 3, 5)}
    if whole["advice"] == "do not draft":
        assert name == "poor"
    else:
        chosen = whole["best"] if whole["advice"].startswith("draft") else 3
        assert tried[chosen] <= 1.04 * min(tried.values())


def row(**changes: Any) -> dict[str, Any]:
    told = {"model": "m", "pool": "p", "request_class": "tools", "answers": 500, "length": 1.2, "drafts": 3}
    return {**told, "per_engine": 8.0, "factor": 1.0, **changes}


def advice(*rows: dict[str, Any]) -> list[str]:
    return [each["advice"] for each in advised(read_drafts(rows))]


def test_a_drafter_that_nothing_is_accepted_of_is_to_stop() -> None:
    assert advice(row(length=1.02)) == ["do not draft"]


def test_few_answers_and_unknown_lengths_are_not_enough_evidence() -> None:
    assert advice(row(answers=LEAST_ANSWERS - 1)) == ["not enough evidence"]
    assert advice(row(drafts=0)) == ["not enough evidence"]


def test_a_class_that_has_no_traffic_any_more_has_no_say() -> None:
    busy, week_s = row(request_class="prose", length=1.02, idle_s=2.0), 7 * 86400.0
    alone = advised(read_drafts([busy]))[0]
    for gone in (week_s, None):
        whole, *_ = advised(read_drafts([row(answers=10**6, length=3.9, idle_s=gone), busy]))
        assert (whole["advice"], whole["best"], whole["gain"]) == (alone["advice"], alone["best"], alone["gain"])
        assert advice(row(length=1.02, idle_s=gone)) == ["not enough evidence"]


def test_what_was_expected_before_any_answer_is_no_evidence() -> None:
    known = Acceptance(prior_length(0, 3), 3)
    for _ in range(LEAST_ANSWERS):
        known.learn(25, 0)
    told = {"answers": known.answers, "length": known.length, "shown": known.shown, "weight": known.weight}
    (found,) = advised(read_drafts([row(**told)]))
    assert (found["advice"], found["length"]) == ("do not draft", 1.0)


def test_what_has_faded_is_as_sure_as_what_is_left_of_it() -> None:
    sure, faded = (advised(read_drafts([row(length=3.0, weight=weight)]))[0] for weight in (144.0, 10.0))
    assert sure["at_most"] - sure["at_least"] < faded["at_most"] - faded["at_least"]
    assert (sure["advice"], faded["advice"]) == ("draft 5", "not enough evidence")


def test_a_gain_that_chance_may_have_made_is_not_enough_evidence() -> None:
    """Between two lengths that are as good, more answers must tell."""
    found = {each: advice(row(length=each / 100, answers=60))[0] for each in range(100, 401, 2)}
    assert "not enough evidence" in found.values()
    for told in advised(read_drafts(row(length=each / 100, answers=60) for each in range(100, 401, 2))):
        if told["advice"] not in ("keep", "not enough evidence"):
            assert told["at_least"] > 0


def test_classes_of_a_pool_get_advice_of_their_own_beside_the_pool_s() -> None:
    found = advised(read_drafts([row(length=3.9), row(request_class="prose", length=1.01)]))
    assert len(found) == 3
    by_class = {each["request_class"]: each for each in found}
    assert by_class["prose"]["best"] == 0
    assert by_class["tools"]["best"] >= 3


def test_what_is_best_alone_and_in_a_crowd_is_told_where_it_differs() -> None:
    (found,) = advised(read_drafts([row(length=2.2)]))
    assert found["by_load"][1] > found["by_load"][256]


@given(st.floats(1, 6), st.integers(0, 9), st.integers(0, 10**6), st.floats(0, 1000), st.floats(0.1, 10))
def test_whatever_was_learned_gets_advice_within_its_bounds(
    length: float, drafts: int, answers: int, per_engine: float, factor: float
) -> None:
    told = row(length=length, drafts=drafts, answers=answers, per_engine=per_engine, factor=factor)
    for each in advised(read_drafts([told])):
        if "gain" in each:
            assert each["at_least"] <= each["gain"] <= each["at_most"]


@pytest.mark.parametrize("wrong", [{"length": 0.5}, {"answers": -1}, {"factor": 0.0}, {"pool": None}])
def test_rows_of_another_form_are_refused(wrong: dict[str, Any]) -> None:
    with pytest.raises(ValueError, match="Expected"):
        read_drafts([row(**wrong)])


def test_the_command_asks_a_gateway_and_says_with_its_exit_code_whether_to_change(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    rows: list[dict[str, Any]] = [row(length=1.02)]
    monkeypatch.setattr(plan, "ask", lambda *_: {"data": rows})
    app = typer.Typer()
    app.command()(plan.plan)
    changed = CliRunner().invoke(app, ["--live", "--json"])
    assert (changed.exit_code, json.loads(changed.stdout)[0]["best"]) == (FOUND, 0)
    assert "do not draft" in " ".join(CliRunner().invoke(app, ["--live"], terminal_width=400).stdout.split())
    rows[:] = []
    nothing = CliRunner().invoke(app, ["--live"])
    assert nothing.exit_code == 0
    assert "not enough evidence" in nothing.stdout


@pytest.mark.parametrize("arguments", [[], ["--traffic", "x.jsonl"]])
def test_without_traffic_or_a_gateway_the_command_says_what_to_give(arguments: list[str]) -> None:
    app = typer.Typer()
    app.command()(plan.plan)
    result = CliRunner().invoke(app, arguments)
    assert isinstance(result.exception, ConfigError)
    assert "--live" in str(result.exception)
