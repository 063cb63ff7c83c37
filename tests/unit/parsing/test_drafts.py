"""A call in thoughts is one if nothing but calls and the end of the thoughts follow; otherwise it is a thought."""

from __future__ import annotations

import itertools
import json
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st
from support.written import ARGUMENTS, WRITTEN

from serve.parsing import GRAMMARS, DraftingParser, ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing.formats import FORMATS, TOOLS
from tests.unit.parsing.test_laws import CUTS, TEXTS, check_nothing_vanishes, mutated

PARAMETERS = {"type": "object", "properties": {"path": {"type": "string"}, "content": {"type": "string"}}}
WRITE = [{"type": "function", "function": {"name": "write_file", "parameters": PARAMETERS}}]
SPEAKING = [grammar for grammar in GRAMMARS if FORMATS[grammar].end_of_thinking.endswith("think>")]
SIZES = [1, 7, 10_000]


def read(grammar: str, *pieces: str, tools: Any = WRITE, thinking: bool = True) -> ParsedMessage:
    parser = DraftingParser(lambda: StreamParser(grammar, tools, thinking))
    return fold([*(event for piece in pieces for event in parser.feed(piece)), *parser.finish()])


def cut(text: str, size: int) -> list[str]:
    return [text[place : place + size] for place in range(0, len(text), size)]


def calls(message: ParsedMessage) -> list[Any]:
    return [json.loads(call.arguments) for call in message.tool_calls]


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grammar", SPEAKING)
def test_a_call_with_which_thoughts_end_is_made(grammar: str, size: int) -> None:
    end = FORMATS[grammar].end_of_thinking
    for behind in ("", "\n", f"\n{end}\n", f"\n{WRITTEN[grammar]}", f"\n{WRITTEN[grammar]}\n{end}"):
        message = read(grammar, *cut(f"I plan it.{WRITTEN[grammar]}{behind}", size))
        assert calls(message) == [ARGUMENTS] * (1 + (WRITTEN[grammar] in behind))
        assert (message.reasoning, (message.content or "").strip()) == ("I plan it.", "")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grammar", SPEAKING)
def test_a_call_behind_which_the_model_thinks_on_is_a_thought(grammar: str, size: int) -> None:
    written, end = WRITTEN[grammar], FORMATS[grammar].end_of_thinking
    thoughts = f"I plan it.{written}\nNo, <b> first.{written}\n{written}\nOr not."
    for behind, meant in ((written, [ARGUMENTS]), ("It is done.", []), ("", [])):
        message = read(grammar, *cut(f"{thoughts}{end}{behind}", size))
        assert (message.reasoning, calls(message)) == (thoughts, meant)
        assert (message.content or "").strip() == (behind if not meant else "")


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grammar", SPEAKING)
def test_thoughts_that_never_end_make_no_call_that_they_go_on_behind(grammar: str, size: int) -> None:
    thoughts = f"I plan it.{WRITTEN[grammar]}\nThat was easy."
    message = read(grammar, *cut(thoughts, size))
    assert (message.reasoning, message.content, message.tool_calls) == (thoughts, None, ())


@pytest.mark.parametrize("size", SIZES)
@pytest.mark.parametrize("grammar", ["qwen3_coder", "step3p5", "mimo", "nemotron_v3"])
def test_thoughts_end_behind_a_draft_and_a_call_that_only_begins(grammar: str, size: int) -> None:
    thoughts = f"I plan it.{WRITTEN[grammar]}<tool_call>"
    message = read(grammar, *cut(f"{thoughts}\n</think>\n\nIt is done.", size))
    assert (message.reasoning, (message.content or "").strip()) == (thoughts, "It is done.")
    assert message.tool_calls == ()


@pytest.mark.parametrize("grammar", SPEAKING)
def test_a_call_behind_thoughts_streams_as_it_comes(grammar: str) -> None:
    parser = DraftingParser(lambda: StreamParser(grammar, WRITE, True))
    parser.feed(f"Hm.{FORMATS[grammar].end_of_thinking}")
    plain = StreamParser(grammar, WRITE, True)
    plain.feed(f"Hm.{FORMATS[grammar].end_of_thinking}")
    for piece in cut(WRITTEN[grammar], 5):
        assert parser.feed(piece) == plain.feed(piece)


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=150, deadline=None)
@given(data=st.data(), thinking=st.booleans(), cuts=CUTS)
def test_any_chunking_gives_the_same_message_and_nothing_vanishes(
    grammar: str, data: st.DataObject, thinking: bool, cuts: list[int]
) -> None:
    text = data.draw(mutated(grammar) | TEXTS[grammar])
    whole = read(grammar, text, tools=TOOLS, thinking=thinking)
    places = sorted({0, len(text), *(place for place in cuts if place <= len(text))})
    pieces = [text[start:end] for start, end in itertools.pairwise(places)]
    assert read(grammar, *pieces, tools=TOOLS, thinking=thinking) == whole
    assert read(grammar, *text, tools=TOOLS, thinking=thinking) == whole
    check_nothing_vanishes(text, whole, nested=FORMATS[grammar].nested)


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes", "glm47", "minimax_m2"])
@pytest.mark.parametrize(
    ("text", "reasoning", "content"),
    [
        ("<think>One.</think>\n<think>Two.</think>Well.", "One.Two.", "Well."),
        ("<think>One.</think>Well.<think>Two.</think> Done.", "One.", "Well.<think>Two.</think> Done."),
        ("<think>One.</think>Well, <think> opens it.", "One.", "Well, <think> opens it."),
    ],
)
def test_a_second_thought_is_one_right_behind_the_first_and_text_behind_text(
    grammar: str, text: str, reasoning: str, content: str
) -> None:
    message = parse(text, grammar)
    assert (message.reasoning, message.content, message.violations) == (reasoning, content, ())
