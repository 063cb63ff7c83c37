"""Edge cases of Kimi's format that the conformance rows do not hold."""

import pytest

from serve.parsing import Violation, ViolationKind, parse
from tests.unit.parsing.formats import TOOLS

SECTION = "<|tool_calls_section_begin|>"


CALL = '<|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>{"city": "Bern"}<|tool_call_end|>'


def test_text_in_front_of_a_call_is_reported_as_it_stands_with_the_end_of_thinking_in_it() -> None:
    noise = "what\n</think>now"
    message = parse(f"Hm.{SECTION}{noise}{CALL}", "kimi_k2", TOOLS, thinking=True)
    assert message.violations == (Violation("stray_text", len(f"Hm.{SECTION}"), noise),)
    assert (message.reasoning, message.content, len(message.tool_calls)) == ("Hm.", None, 1)


@pytest.mark.parametrize("noise", ["", "\n", 'functions.get_weather:0{"city": "Bern"}'])
@pytest.mark.parametrize(("end", "kind"), [("<|tool_calls_section_end|>", "malformed_call"), ("", "unfinished_call")])
def test_a_section_without_a_call_is_a_dropped_call(noise: str, end: str, kind: ViolationKind) -> None:
    text = f"{SECTION}{noise}{end}"
    assert parse(text, "kimi_k2", TOOLS).violations == (Violation(kind, 0, text, hidden=True),)


def test_a_doubled_section_begin_costs_no_call() -> None:
    message = parse(f"{SECTION}\n{SECTION}{CALL}", "kimi_k2", TOOLS)
    assert message.violations == (Violation("stray_marker", 0, f"{SECTION}\n"),)
    assert len(message.tool_calls) == 1


def test_a_call_without_any_id_gets_one_of_the_models_form() -> None:
    text = f"{SECTION}{CALL}{CALL.replace('functions.get_weather:0', '')}"
    assert [call.id for call in parse(text, "kimi_k2", TOOLS).tool_calls] == [
        "functions.get_weather:0",
        "functions.get_weather:1",
    ]


def test_only_calls_whose_text_is_nowhere_else_count_as_dropped() -> None:
    lost = f"{SECTION}{CALL.replace('functions.get_weather:0', 'x')}".replace("city", "nothing")
    assert [fault.hidden for fault in parse(lost, "kimi_k2", TOOLS).violations] == [True]
    kept = f"functions.get_weather:0<|tool_call_argument_begin|>{{}}{CALL[:-30]}"
    assert [fault.hidden for fault in parse(kept, "kimi_k2", TOOLS).violations] == [False, False]


@pytest.mark.parametrize(
    ("arguments", "name"),
    [('{"city": "Bern"}', "get_weather"), ('{"city": 5}', None), ('{"city": "Bern", "days": 2.5}', None),
     ("{}", "mcp.fs.write"), ('{"city": "Bern", "note": null}', "get_weather"),
     ('{"tags": []}', "mcp.fs.write"), ('{"tags": {}}', None)],
)  # fmt: skip
def test_arguments_name_a_call_only_where_names_and_types_fit_one_tool(arguments: str, name: str | None) -> None:
    text = f"<|tool_call_begin|>call_3<|tool_call_argument_begin|>{arguments}<|tool_call_end|>"
    assert [call.name for call in parse(text, "kimi_k2", TOOLS).tool_calls] == ([name] if name else [])


@pytest.mark.parametrize("id", ["functions.get_weather:0", " get_weather:3 ", "functions.mcp.fs.write:1"])
@pytest.mark.parametrize("end", ["<|tool_call_end|><|tool_calls_section_end|>", "<|tool_calls_section_end|>"])
def test_an_id_in_a_section_begins_a_call_whose_own_marker_is_missing(id: str, end: str) -> None:
    text = f'<|tool_calls_section_begin|>{id}<|tool_call_argument_begin|>{{"path": "/a"}}{end}'
    message = parse(text, "kimi_k2", TOOLS)
    assert [(call.id, call.arguments) for call in message.tool_calls] == [(id.strip(), '{"path": "/a"}')]
    assert "drifted_marker" in {fault.kind for fault in message.violations}


def test_words_in_front_of_arguments_in_a_section_begin_no_call() -> None:
    text = '<|tool_calls_section_begin|>I write to<|tool_call_argument_begin|>{"path": "/a"}<|tool_calls_section_end|>'
    message = parse(text, "kimi_k2", TOOLS)
    assert message.tool_calls == ()
    assert [fault.kind for fault in message.violations] == ["malformed_call"]
