"""Token ids tell a marker from the same letters, in steps of any size that an engine takes."""

from __future__ import annotations

import json
import random
import re

import pytest

from serve.parsing import GRAMMARS, ParsedMessage, StreamParser, fold
from serve.parsing.lexer import Token
from tests.unit.parsing.formats import MARKERS, TOOLS, answer, good_call

Step = tuple[int, str]
LETTER = 17  # any id that is no marker's


def tokens(grammar: str, text: str, quoted: str = "") -> list[Step]:
    """One token a marker, one a letter; `quoted` is spelt in letters."""
    ids = {marker: token for token, marker in GRAMMARS[grammar].token_ids.items()}
    unit = re.compile("|".join([*map(re.escape, ids), "."]), re.DOTALL)
    before, found, behind = text.partition(quoted) if quoted else (text, "", "")
    return [
        *((ids.get(piece, LETTER), piece) for piece in unit.findall(before)),
        *((LETTER, letter) for letter in found),
        *((ids.get(piece, LETTER), piece) for piece in unit.findall(behind)),
    ]


def read(grammar: str, given: list[Step], seed: int, size: int) -> ParsedMessage:
    parser, steps, events, place = StreamParser(grammar, TOOLS), random.Random(seed), [], 0
    while place < len(given):
        step = given[place : place + steps.randint(1, size)]
        events += parser.feed("".join(text for _, text in step), [token for token, _ in step])
        place += len(step)
    return fold([*events, *parser.finish()])


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_marker_spelt_in_letters_inside_a_value_stays_text(grammar: str) -> None:
    for marker in GRAMMARS[grammar].token_ids.values():
        city = f"x {marker} y"
        text = good_call(grammar, city, 0) + good_call(grammar, "Bern", 1)
        for seed in range(20):
            message = read(grammar, tokens(grammar, text, quoted=city), seed, size=6)
            assert [json.loads(call.arguments)["city"] for call in message.tool_calls] == [city, "Bern"], marker
            assert {fault.kind for fault in message.violations} <= {"ambiguous_value"}  # XML's: letters may close, too


@pytest.mark.parametrize("marker", ["<|tool_call_end|>", "<|tool_calls_section_end|>", "<|tool_call_begin|>"])
def test_a_real_marker_inside_an_open_string_ends_the_call(marker: str) -> None:
    call = good_call("kimi_k2", "Bern", 0)
    text = call[: call.index("Bern") + 2] + marker + call
    for seed in range(20):
        message = read("kimi_k2", tokens("kimi_k2", text), seed, size=6)
        assert message.tool_calls[0].arguments == '{"city": "Be'
        assert message.violations[0].kind in ("unfinished_call", "malformed_arguments")


@pytest.mark.parametrize("grammar", ["kimi_k3", "harmony"])
def test_a_marker_spelt_in_letters_in_an_answer_stays_text(grammar: str) -> None:
    for marker in GRAMMARS[grammar].token_ids.values():
        said = f"A {marker} is a marker."
        text = answer(grammar, "", said, good_call(grammar, "Bern", 0), rest="")
        text = text.removeprefix("<|close|>think<|sep|>").removeprefix("<|end|>")  # reasoning
        for seed in range(20):
            message = read(grammar, tokens(grammar, text, quoted=said), seed, size=4)
            assert (message.content, len(message.tool_calls), message.violations) == (said, 1, ()), marker


@pytest.mark.parametrize("marker", ["<|open|>", "<|close|>", "<|sep|>"])
def test_a_real_marker_of_xtml_inside_a_value_is_reported(marker: str) -> None:
    text = good_call("kimi_k3", f"Be{marker}rn", 0)
    for seed in range(20):
        message = read("kimi_k3", tokens("kimi_k3", text), seed, size=6)
        assert "malformed_call" in [fault.kind for fault in message.violations]


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_ids_of_any_mixture_give_the_same_in_any_steps(grammar: str) -> None:
    ids = {marker: token for token, marker in GRAMMARS[grammar].token_ids.items()}
    steps = random.Random(3)
    for number in range(400):
        words = [*(word for word in MARKERS[grammar] if word in ids), '"', "{", "}", "`", "x", '{"city": "', '"}', " "]
        given = [
            token
            for word in steps.choices(words, k=steps.randint(1, 25))
            for token in ([(ids[word], word)] if word in ids else [(LETTER, letter) for letter in word])
        ]
        first = read(grammar, given, 0, size=1)
        for size in (2, 5, 9):
            assert read(grammar, given, number, size) == first, given


def test_markers_that_mean_nothing_where_they_stand_are_looked_at_once_each() -> None:
    marker = "<|tool_call_argument_begin|>"
    text = f"<|tool_call_begin|>functions.get_weather:0{marker}" + marker * 500
    parser = StreamParser("kimi_k2", TOOLS)
    compared = 0

    class Spelling(str):
        __slots__ = ()
        __hash__ = str.__hash__

        def __eq__(self, other: object) -> bool:
            nonlocal compared
            compared += 1
            return str.__eq__(self, other)

    lexer = parser.machine._lexer
    read_tokens = lexer.feed
    lexer.feed = lambda piece: [Token(kind, Spelling(raw)) for kind, raw in read_tokens(piece)]  # type: ignore[method-assign]
    events = parser.feed(text, [163597, 163598, *[163598] * 500])
    assert fold([*events, *parser.finish()]).tool_calls[0].arguments == marker * 500
    assert compared < 20 * 500
