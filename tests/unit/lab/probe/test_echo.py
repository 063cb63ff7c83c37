"""The echo canary: what it asks, how it judges, and how soon it is certain."""

import json
from random import Random
from typing import Any

import pytest

from lab.deltas import fold_deltas
from lab.sim import SimSettings
from lab.sim.generation import Generation
from serve.echo.prompt import NAMES, EchoPrompt
from serve.quarantine.sequential import SequentialTest


def answer(values: Any, name: str = "echo") -> dict[str, Any]:
    call = {"function": {"name": name, "arguments": json.dumps({"values": values})}}
    return {"choices": [{"message": {"tool_calls": [call]}}]}


PROMPT = EchoPrompt.of(7)


def test_each_prompt_has_names_of_its_own_beside_decoys_that_differ_in_one_place() -> None:
    prompts = [EchoPrompt.of(number) for number in range(200)]
    names = [name for prompt in prompts for name in prompt.names]
    assert len(set(names)) == len(names) == 200 * NAMES
    for prompt in prompts:
        text = prompt.body(stream=False)["messages"][0]["content"]
        assert text.endswith(json.dumps(prompt.names, ensure_ascii=False))
        for name, decoy in zip(prompt.names, prompt.decoys, strict=True):
            assert decoy in text
            assert sum(a != b for a, b in zip(name, decoy, strict=True)) == 1


def test_what_is_as_asked_has_no_changes() -> None:
    assert PROMPT.changes(answer(list(PROMPT.names))) == []


@pytest.mark.parametrize(
    ("value", "change"),
    [(PROMPT.decoys[0], "decoy"), (PROMPT.names[0][:-1], "slip"), ("zz", "other"), (7, "other"), (None, "missing")],
)
def test_a_changed_name_is_told_by_its_kind(value: Any, change: str) -> None:
    assert PROMPT.changes(answer([value, *PROMPT.names[1:]])) == [change]


@pytest.mark.parametrize("other", [{}, {"choices": []}, answer("text"), answer([1], "other"), {"choices": [{}]}])
def test_an_answer_without_such_a_call_says_nothing(other: dict[str, Any]) -> None:
    assert PROMPT.changes(other) is None


def found_after(rate: float, chance: Random, most: int) -> tuple[str, int]:
    """Returns a test's finding and after how many identifiers it came."""
    test = SequentialTest()
    while test.finding == "undecided" and test.trials < most:
        test.add(NAMES, sum(chance.random() < rate for _ in range(NAMES)))
    return test.finding, test.trials


def test_three_corrupted_of_a_thousand_are_found_within_3200_and_a_sound_pool_is_let_go() -> None:
    chance = Random(1)
    corrupt = [found_after(0.003, chance, 3200) for _ in range(3000)]
    assert [finding for finding, _ in corrupt].count("sound") <= 1
    assert [finding for finding, _ in corrupt].count("corrupt") >= 3000 - 7
    assert sorted(count for _, count in corrupt)[1500] < 1000
    sound = [found_after(3e-6, chance, 3200) for _ in range(1000)]
    assert [finding for finding, _ in sound].count("corrupt") <= 2
    assert [finding for finding, _ in sound].count("sound") > 950


def test_a_simulated_engine_copies_and_slips_as_often_as_it_is_told_where_it_drafts() -> None:
    def changed(**settings: Any) -> float:
        changes = 0
        for number in range(300):
            prompt = EchoPrompt.of(number)
            deltas = [*Generation(prompt.body(stream=True), SimSettings(grammar="hermes", **settings)).deltas()]
            message = fold_deltas([delta for delta in deltas if delta])
            changes += len(prompt.changes({"choices": [{"message": message}]}) or ())
        return changes / 300 / NAMES

    assert changed(num_speculative_tokens=3) == 0
    assert changed(slips=0.05) == 0
    assert 0.03 < changed(num_speculative_tokens=3, slips=0.05) < 0.07
