"""Our reasoning parsers inside vLLM's own parser classes."""

from __future__ import annotations

from typing import Any

import pytest

from serve.parsing.families import thinking_of
from tests.unit.engine.vllm.parser_harness import (
    NOT_THINKING,
    OUTPUTS,
    THINKING,
    TOKENIZER,
    parser,
    request,
    streamed,
    vllm_parsers,
    whole,
)
from tests.unit.parsing import cases

OTHER = {"thinking": "enable_thinking", "enable_thinking": "thinking"}
REASONING_PARSERS = vllm_parsers.REASONING_PARSERS


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_a_call_ends_reasoning_that_was_not_closed(grammar: str) -> None:
    text = OUTPUTS[grammar].replace("</think>Look:", "")
    expected = ("Well.", " Done.", [("get_weather", '{"city": "Bern", "days": 2}')])
    assert whole(grammar, text, request()) == expected
    assert streamed(grammar, text, request(), size=7) == expected


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_the_prompt_decides_whether_reasoning_comes_first(grammar: str) -> None:
    text = "Just an answer."
    assert whole(grammar, text, request(), NOT_THINKING) == (None, text, [])
    assert streamed(grammar, text, request(), NOT_THINKING) == (None, text, [])
    assert whole(grammar, text, request(), THINKING) == (text, None, [])
    assert streamed(grammar, text, request(), THINKING) == (text, None, [])
    assert streamed(grammar, text, request(), "<|im_start|>assistant") == (None, text, [])
    assert streamed(grammar, f"<think>Hm.</think>{text}", request(), "<|im_start|>assistant") == ("Hm.", text, [])


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_thinking_that_the_request_turns_off_makes_all_text_content(grammar: str) -> None:
    text = "Just an answer."
    switch = thinking_of(grammar).switch
    for more in ({}, {OTHER[switch]: True}):
        assert whole(grammar, text, request(), THINKING, **{switch: False}, **more) == (None, text, [])
        assert streamed(grammar, text, request(), THINKING, **{switch: False}, **more) == (None, text, [])


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_a_switch_that_the_template_does_not_read_is_not_believed_over_the_prompt(grammar: str) -> None:
    switch = OTHER[thinking_of(grammar).switch]
    for read in (whole, streamed):
        assert read(grammar, "Hm.</think>Yes.", request(), THINKING, **{switch: False}) == ("Hm.", "Yes.", [])
        assert read(grammar, "Yes.", request(), NOT_THINKING, **{switch: True}) == (None, "Yes.", [])
    made = parser(grammar, request(), **{switch: False})
    assert not made.is_reasoning_end(TOKENIZER.encode(THINKING))
    assert made.is_reasoning_end(TOKENIZER.encode("<|im_start|>assistant"))


@pytest.mark.parametrize("grammar", OUTPUTS)
def test_each_further_choice_of_a_whole_answer_knows_the_prompt_too(grammar: str) -> None:
    asked = request(n=2)
    first, second = parser(grammar, asked), parser(grammar, asked)
    first.is_reasoning_end(TOKENIZER.encode(THINKING))
    assert first.parse("One.</think>1", asked, enable_auto_tools=True)[:2] == ("One.", "1")
    assert second.parse("Two, cut", asked, enable_auto_tools=True)[:2] == ("Two, cut", None)


def test_the_engine_core_learns_that_a_first_marker_of_a_call_ends_reasoning() -> None:
    vocabulary = TOKENIZER.get_vocab()
    made = REASONING_PARSERS["specgate_kimi_k2"](TOKENIZER)
    for text, implicit in (("</think>", False), ("<|tool_calls_section_begin|>", True), ("<|tool_call_begin|>", True)):
        assert made.find_reasoning_end([5000, vocabulary[text], 5000]) == (1, implicit)
        assert made.is_reasoning_end_streaming([], [vocabulary[text]])
    assert made.find_reasoning_end([5000]) == (1, False)
    assert not made.is_reasoning_end_streaming([], [5000])


def test_reasoning_tokens_are_counted_up_to_its_end() -> None:
    made = parser("qwen3_coder", request())
    made.is_reasoning_end(TOKENIZER.encode(THINKING))
    assert made.count_reasoning_tokens(TOKENIZER.encode("abc</think>de")) == 3
    assert made.count_reasoning_tokens(TOKENIZER.encode("<think>abc")) == 3
    made.is_reasoning_end(TOKENIZER.encode(NOT_THINKING))
    assert made.count_reasoning_tokens(TOKENIZER.encode("abc")) == 0


@pytest.mark.parametrize(
    "row", cases.params({**row, "asserts": []} for row in cases.rows("qwen3_reasoning_end_tokens"))
)
def test_token_rows_say_whether_reasoning_has_ended(row: dict[str, Any]) -> None:
    made = REASONING_PARSERS["specgate_qwen3_coder"](
        TOKENIZER, chat_template_kwargs={"enable_thinking": row["enable_thinking"]}
    )
    vocabulary = TOKENIZER.get_vocab()
    ids = [vocabulary.get(token, 5000) for token in row["tokens"]]
    assert made.is_reasoning_end(ids) is row["expected_reasoning_ended"]
