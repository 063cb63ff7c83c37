"""Our tool parsers inside vLLM's own parser classes."""

from __future__ import annotations

import json
import logging
from typing import Any

import pytest

from tests.unit.engine.vllm.parser_harness import (
    KIMI_CALL,
    OUTPUTS,
    SPECIAL,
    THINKING,
    TOOL,
    Tokenizer,
    parser,
    request,
    streamed,
    vllm_parsers,
    whole,
)
from tests.unit.parsing import cases

_LOG = "ray.serve.specgate.parsing"


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_streamed_and_whole_answers_agree_in_every_step_size(grammar: str) -> None:
    expected = ("Well.", "Look: Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, OUTPUTS[grammar], request()) == expected
    for size in (1, 2, 3, 4, 5, 8, 13, 1000):
        assert streamed(grammar, OUTPUTS[grammar], request(), size=size) == expected, size


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_text_that_lags_behind_its_tokens_changes_nothing(grammar: str) -> None:
    for lag in (1, 4, 11):
        assert streamed(grammar, OUTPUTS[grammar], request(), size=3, lag=lag) == whole(
            grammar, OUTPUTS[grammar], request()
        )


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_without_a_reasoning_parser_a_tool_parser_works_alone(grammar: str) -> None:
    text = OUTPUTS[grammar].removeprefix("Well.</think>")
    expected = (None, "Look: Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, text, request(), reasoning=False) == expected
    assert streamed(grammar, text, request(), reasoning=False, size=4) == expected


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_tool_choice_none_gives_text_and_no_calls(grammar: str) -> None:
    asked = request(tool_choice="none")
    assert whole(grammar, OUTPUTS[grammar], asked) == ("Well.", "Look: Done.", [])
    for size in (1, 5, 1000):
        assert streamed(grammar, OUTPUTS[grammar], asked, size=size) == ("Well.", "Look: Done.", [])


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_without_tools_markup_is_what_the_user_asked_to_see(grammar: str) -> None:
    asked = request(tools=None)
    content = OUTPUTS[grammar].split("</think>")[1]
    assert whole(grammar, OUTPUTS[grammar], asked) == ("Well.", content, [])
    assert streamed(grammar, OUTPUTS[grammar], asked, size=3) == ("Well.", content, [])


@pytest.mark.parametrize("grammar", OUTPUTS)
@pytest.mark.parametrize("choice", ["required", {"type": "function", "function": {"name": "get_weather"}}])
def test_forced_calls_are_read_in_the_models_own_format(grammar: str, choice: Any) -> None:
    asked = request(tool_choice=choice)
    adjusted = parser(grammar, asked).adjust_request(asked)
    assert json.loads(adjusted.structured_outputs.structural_tag)["type"] == "structural_tag"
    assert adjusted.skip_special_tokens is False
    assert whole(grammar, OUTPUTS[grammar], asked)[2] == [("get_weather", '{"city": "Bern", "days": 2}')]
    assert streamed(grammar, OUTPUTS[grammar], asked, size=4)[2] == [("get_weather", '{"city": "Bern", "days": 2}')]


@pytest.mark.parametrize("parallel", [True, False])
def test_a_bare_call_marker_starts_the_grammar_of_strict_kimi_tools(parallel: bool) -> None:
    asked = request(tool_choice="auto", parallel_tool_calls=parallel)
    adjusted = parser("kimi_k2", asked).adjust_request(asked)
    tag = json.loads(adjusted.structured_outputs.structural_tag)["format"]
    assert tag["triggers"] == ["<|tool_calls_section_begin|>", "<|tool_call_begin|>"]
    assert any(call["begin"].startswith("<|tool_call_begin|>functions.get_weather:") for call in tag["tags"])
    assert "<|tool_call_begin|>" not in tag["excludes"]
    assert tag["stop_after_first"] is not parallel


def test_that_grammar_accepts_calls_with_and_without_their_section() -> None:
    xgrammar = pytest.importorskip("xgrammar")
    asked = request(tool_choice="auto")
    tag = parser("kimi_k2", asked).adjust_request(asked).structured_outputs.structural_tag
    vocabulary = [*SPECIAL, *(chr(code) for code in range(32, 127)), "<eos>"]
    info = xgrammar.TokenizerInfo(vocabulary, stop_token_ids=[len(vocabulary) - 1])
    grammar = xgrammar.GrammarCompiler(info, max_threads=1).compile_structural_tag(tag)
    section = f"<|tool_calls_section_begin|>{KIMI_CALL}<|tool_calls_section_end|>"
    for text, good in ((section, True), (KIMI_CALL, True), (KIMI_CALL.replace('"city"', '"town"'), False)):
        matcher = xgrammar.GrammarMatcher(grammar)
        ids = [vocabulary.index(unit) for unit in Tokenizer.units(f"Hi. {text}")]
        assert all(matcher.accept_token(token) for token in ids) is good


def test_a_cut_call_keeps_what_came_and_is_logged(caplog: pytest.LogCaptureFixture) -> None:
    text = OUTPUTS["kimi_k2"].split(', "days"')[0]
    with caplog.at_level(logging.WARNING, _LOG):
        assert whole("kimi_k2", text, request())[2] == [("get_weather", '{"city": "Bern"')]
        assert streamed("kimi_k2", text, request())[2] == [("get_weather", '{"city": "Bern"')]
    assert [record.name for record in caplog.records if "unfinished_call" in record.message] == [_LOG, _LOG]
    assert "Bern" not in caplog.text


DROPPED = {  # what of a good call is replaced by what
    "no name, and no tool that takes the arguments": ('functions.get_weather:0<|tool_call_argument_begin|>{"city',
                                                      'nobody<|tool_call_argument_begin|>{"x'),
    "a header that goes on to the end": ("<|tool_call_argument_begin|>{", "{"),
    "a section without a call": ("<|tool_call_begin|>functions.get_weather:0", "I call it"),
}  # fmt: skip


@pytest.mark.parametrize("case", DROPPED)
def test_a_hidden_call_is_content_where_the_request_asks_for_it_and_else_only_logged(
    case: str, caplog: pytest.LogCaptureFixture
) -> None:
    broken = KIMI_CALL.replace(*DROPPED[case])
    text = OUTPUTS["kimi_k2"].replace(KIMI_CALL, broken)
    asked = request(vllm_xargs={"specgate_violations": 1})
    for size in (1, 2, 3, 5, 8, 1000):
        found = streamed("kimi_k2", text, asked, size=size)
        assert found == whole("kimi_k2", text, asked)
        assert found[2] == []
        assert broken in found[1]
        assert "<|tool_call" in found[1]
        assert streamed("kimi_k2", text, request(), size=size) == ("Well.", "Look: Done.", [])
    with caplog.at_level(logging.WARNING, _LOG):
        assert whole("kimi_k2", text, request()) == ("Well.", "Look: Done.", [])
    assert caplog.records


def test_a_call_that_has_swallowed_the_next_is_content_too_where_the_request_asks_for_it() -> None:
    inner = '{"name": "get_weather", "arguments": {"city": "Bern"}'
    text = f"</think><tool_call>\n{inner}{inner}}}\n</tool_call>"
    asked = request(vllm_xargs={"specgate_violations": 1})
    for size in (1, 4, 1000):
        found = streamed("hermes", text, asked, size=size)
        assert found == whole("hermes", text, asked)
        assert found[2] == [("get_weather", '{"city": "Bern"}')]
        assert found[1].startswith(f"<tool_call>\n{inner}{inner}")


@pytest.mark.parametrize("grammar", ["qwen3_coder", "hermes"])
def test_the_text_of_a_call_that_cannot_be_read_stays_content(grammar: str) -> None:
    for old, new in (("<tool_call>\n", "<tool_call>\n<"), ("get_weather", 'get weather"'), ("name", "mane")):
        text = OUTPUTS[grammar].replace(old, new, 1)
        reasoning, content, calls = whole(grammar, text, request())
        for size in (1, 3, 1000):
            assert streamed(grammar, text, request(), size=size) == (reasoning, content, calls)
        assert calls or "<tool_call>" in content


def test_a_string_that_is_never_closed_does_not_swallow_the_markers_behind_it() -> None:
    """Seen on a real engine: a stream has the ids that tell a marker from text, a complete output has not."""
    text = OUTPUTS["kimi_k2"].replace('"Bern", "days": 2}', '"Bern}')
    expected = ("Well.", "Look: Done.", [("get_weather", '{"city": "Bern}')])
    assert whole("kimi_k2", text, request()) == expected
    for size in (1, 3, 1000):
        assert streamed("kimi_k2", text, request(), size=size) == expected, size


def test_a_marker_quoted_inside_a_closed_string_stays_text_in_a_complete_output() -> None:
    text = OUTPUTS["kimi_k2"].replace("Bern", "<|tool_call_end|>")
    assert whole("kimi_k2", text, request())[2] == [("get_weather", '{"city": "<|tool_call_end|>", "days": 2}')]
    unknown = text.replace('"days"', '"hours"')
    assert whole("kimi_k2", unknown, request())[2] == [("get_weather", '{"city": "<|tool_call_end|>", "hours": 2}')]


def test_a_call_behind_a_backtick_is_the_same_in_both_modes() -> None:
    text = OUTPUTS["hermes"].replace("<tool_call>", "`<tool_call>").replace("</tool_call>", "</tool_call>`")
    found = whole("hermes", text, request())
    assert found[2] == [("get_weather", '{"city": "Bern", "days": 2}')]
    for size in (1, 3, 1000):
        assert streamed("hermes", text, request(), size=size) == found


def test_empty_arguments_are_an_empty_object_in_both_modes() -> None:
    text = "</think><|tool_calls_section_begin|><|tool_call_begin|>functions.get_weather:0<|tool_call_argument_begin|>"
    text += "<|tool_call_end|><|tool_calls_section_end|>"
    assert whole("kimi_k2", text, request())[2] == streamed("kimi_k2", text, request())[2] == [("get_weather", "{}")]


def test_kimi_ids_are_the_models_and_other_ids_are_unique() -> None:
    kimi = parser("kimi_k2", request()).parse(OUTPUTS["kimi_k2"], request(), enable_auto_tools=True)
    assert kimi[2][0].id == "functions.get_weather:0"
    ids = {parser("hermes", request()).parse(OUTPUTS["hermes"], request(), True)[2][0].id for _ in range(9)}
    assert len(ids) == 9


@pytest.mark.parametrize("row", cases.params(cases.rows("kimi_k2_e2e", "qwen3_e2e")))
def test_end_to_end_rows_hold_through_vllm(row: dict[str, Any]) -> None:
    asked = request(tools=row.get("tools") or [TOOL])
    grammar = cases.options(row)["grammar"]
    prompt = THINKING if row.get("prompt_ends_in_think") else "<|im_start|>assistant"
    found = whole(grammar, row["output_text"], asked, prompt)
    wanted = [(call["name"], call["arguments"]) for call in row["expected_tool_calls"]]
    got = [(name, json.loads(arguments)) for name, arguments in found[2]]
    assert got == [(name, json.loads(a) if isinstance(a, str) else a) for name, a in wanted]
    assert (found[0] or "") == (row["expected_reasoning"] or "")
    for size in (1, 2, 3, 5, 11, 23):
        assert streamed(grammar, row["output_text"], asked, prompt, size=size) == found


def test_registering_twice_keeps_one_of_each() -> None:
    vllm_parsers.register()
    vllm_parsers.register()
    from vllm.tool_parsers import ToolParserManager

    for name, made in vllm_parsers.TOOL_PARSERS.items():
        assert ToolParserManager.get_tool_parser(name) is made
