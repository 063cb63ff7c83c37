"""A call that an answer or a thought shows in a fenced block of code is a part of the text, in every format."""

from __future__ import annotations

import itertools

import pytest

from serve.parsing import ParsedMessage, StreamParser, fold, parse
from tests.unit.parsing import cases
from tests.unit.parsing.formats import FORMATS, TOOLS, good_call, wrapped

# A header of harmony and a tag of XTML end what stands in front of them, whatever that is.
GRAMMARS = sorted(FORMATS.keys() - {"harmony", "kimi_k3"})
BLOCKS = [
    "```xml\n{}\n```",
    "~~~\n{}\n~~~",
    "````\n```\n{}\n```\n````",
    "1. Write:\n   ```\n   {}\n   ```",
    "> ```\n{}\n> ```",
]


def read(text: str, grammar: str, *, thinking: bool = False) -> ParsedMessage:
    """Returns the message of a text, which must be the same wherever the text is cut."""
    whole = parse(text, grammar, TOOLS, thinking)
    assert cases.stream(text, grammar=grammar, tools=TOOLS, thinking=thinking) == whole
    for place in range(0, len(text), 5):
        pieces = [text[:place], text[place:]]
        assert cases.stream(pieces, grammar=grammar, tools=TOOLS, thinking=thinking) == whole
    return whole


def shown(grammar: str, block: str = BLOCKS[0]) -> str:
    return f"The format:\n\n{block.format(wrapped(grammar, good_call(grammar, 'Bern', 3)))}\nThat is it."


@pytest.mark.parametrize(
    ("grammar", "block"), [*itertools.product(GRAMMARS, BLOCKS[:1]), *itertools.product(["qwen3_coder"], BLOCKS)]
)
def test_a_call_in_a_block_of_code_is_text(grammar: str, block: str) -> None:
    text = shown(grammar, block)
    assert read(text, grammar) == ParsedMessage(None, text, (), ())


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_call_in_a_block_of_code_in_thoughts_is_a_thought(grammar: str) -> None:
    message = read(f"{shown(grammar)}{FORMATS[grammar].end_of_thinking}Done.", grammar, thinking=True)
    assert message == ParsedMessage(shown(grammar), "Done.", (), ())


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_call_behind_a_block_of_code_is_read(grammar: str) -> None:
    message = read(f"{shown(grammar)}\n\n```bash\nls\n```\n{wrapped(grammar, good_call(grammar, 'Bern', 3))}", grammar)
    assert [call.name for call in message.tool_calls] == ["get_weather"]
    assert not message.violations


@pytest.mark.parametrize("line", ["Run ```ls``` first:", "Run `ls` first:", "```ls```", "A ``` in a line:"])
def test_backticks_in_a_line_begin_no_block(line: str) -> None:
    message = read(f"{line}\n{good_call('qwen3_coder', 'Bern', 3)}", "qwen3_coder")
    assert [call.name for call in message.tool_calls] == ["get_weather"]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_call_in_a_block_of_code_that_never_ends_may_have_been_meant(grammar: str) -> None:
    text = f"I run it:\n```bash\nls\n{wrapped(grammar, good_call(grammar, 'Bern', 3))}"
    message = read(text, grammar)
    assert (message.content, message.tool_calls) == (text, ())
    assert [(each.kind, each.hidden) for each in message.violations] == [("unfinished_call", False)]


def test_tokens_of_a_call_are_one_in_a_block_of_code_too() -> None:
    parser = StreamParser("kimi_k2", TOOLS)
    events = parser.feed("```bash\nls\n")
    for piece, token in [
        ("<|tool_calls_section_begin|>", 163595), ("<|tool_call_begin|>", 163597), ("functions.get_time:0", 1),
        ("<|tool_call_argument_begin|>", 163598), ("{}", 2), ("<|tool_call_end|>", 163599),
        ("<|tool_calls_section_end|>", 163596),
    ]:  # fmt: skip
        events += parser.feed(piece, [token])
    assert len(fold([*events, *parser.finish()]).tool_calls) == 1
