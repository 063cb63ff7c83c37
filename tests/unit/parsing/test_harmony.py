"""Headers of harmony that lack a part: what is certain is read, and all else is in doubt."""

from __future__ import annotations

import json

import pytest

from serve.parsing import parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import TOOLS

ARGUMENTS = '{"city": "Bern", "days": 2}'


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(
    "start", ["", "<|start|>assistant", "<|channel|>analysis<|message|>Hm.<|end|><|start|>assistant"]
)
@pytest.mark.parametrize("form", ["", " json", " <|constrain|>json", "<|constrain|>JSON"])
def test_a_recipient_without_a_channel_is_called(start: str, form: str, size: int) -> None:
    text = f"{start} to=functions.get_weather{form}<|message|>{ARGUMENTS}<|call|>"
    message = cases.stream(cases.grouped(text, size), grammar="harmony", tools=TOOLS)
    assert [(call.name, call.arguments) for call in message.tool_calls] == [("get_weather", ARGUMENTS)]
    assert [(fault.kind, fault.hidden) for fault in message.violations] == [("drifted_marker", False)]
    assert message.content is None


@pytest.mark.parametrize(
    "head",
    [
        "<|start|>assistant",
        "<|start|>assistant to=functions.get_weather to=functions.other",
        "<|start|>assistant I call to=functions.get_weather",
        "<|start|>user to=functions.get_weather",
    ],
)
def test_a_header_without_a_channel_that_leaves_a_doubt_is_hidden_damage(head: str) -> None:
    message = cases.stream([f"{head}<|message|>{json.dumps({'city': 'Bern'})}<|end|>"], grammar="harmony", tools=TOOLS)
    assert any(fault.hidden for fault in message.violations)


@pytest.mark.parametrize("blanks", ["\n", " \t", " " * 300])
@pytest.mark.parametrize(
    "head",
    [
        "assistant<|channel|>commentary to=functions.get_weather <|constrain|>json",
        "assistant to=functions.get_weather<|channel|>commentary json",
        "assistant to=functions.get_weather",
        "assistant<|channel|>commentary <|constrain|>json",
        "assistant x",
        "assistant<|channel|> final",
    ],
)
def test_any_blanks_of_a_header_are_as_good_as_one(head: str, blanks: str) -> None:
    def read(head: str) -> tuple[object, ...]:
        message = parse(f"<|start|>{head}<|message|>{ARGUMENTS}<|call|>", "harmony", TOOLS)
        return message.content, message.tool_calls, [(fault.kind, fault.hidden) for fault in message.violations]

    assert read(head.replace(" ", blanks)) == read(head)


@pytest.mark.parametrize("size", [1, 3, 1000])
@pytest.mark.parametrize(("channel", "field"), [("analysis", "reasoning"), ("final", "content")])
def test_a_message_to_the_model_itself_is_what_its_last_channel_says(channel: str, field: str, size: int) -> None:
    text = f"<|channel|>commentary to=assistant<|channel|>{channel}<|message|>Hm.<|end|>"
    message = cases.stream(cases.grouped(text, size), grammar="harmony", tools=TOOLS)
    assert getattr(message, field) == "Hm."
    assert [(fault.kind, fault.hidden) for fault in message.violations] == [("stray_text", True)]


def test_a_result_that_the_model_makes_up_is_not_shown() -> None:
    for head in (
        "<|start|>functions.get_weather to=assistant<|channel|>commentary",
        "<|channel|>commentary to=assistant",
    ):
        message = parse(f"{head}<|message|>Sunny.<|end|>", "harmony", TOOLS)
        assert (message.content, message.reasoning) == (None, None)
        assert [(fault.kind, fault.hidden) for fault in message.violations] == [("stray_text", True)]
