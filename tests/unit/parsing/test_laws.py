"""The three laws: any chunking gives the same message, stream equals whole, and nothing vanishes."""

from __future__ import annotations

import itertools
import json
import os
import random
import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from serve.parsing import GRAMMARS, CallEnd, CallStart, Fault, ParsedMessage, ReasoningSplit, StreamParser, fold, parse
from serve.parsing.machine import State
from tests.unit.parsing import cases
from tests.unit.parsing.formats import FORMATS, MARKERS, TOOLS, answer, any_call, good_call, with_second_city, wrapped

WORDS = [" ", "\n", "\n\n", "Tokyo", "7", "null", "`", "<", "<<", "<|", '"', '\\"', "\\", "{", "}", "[", "]", ":", ",",
         '{"city": "', '"}', "functions.get_weather:0", "call_3", "0", "检查", "🌍", "é", "get_weather", "x",
         '{"name": "get_weather", "arguments": {', '"arguments"', '"name"', "true", "1.5", ">", "=", "�"]  # fmt: skip
LETTERS = "çλжあ漢"  # in no marker of any grammar
NUMBERED = range(0xAC00, 0xD7A4)  # what they become, see `numbered`
TEXTS = {
    grammar: st.lists(st.sampled_from([*markers * 2, *WORDS]) | st.text(LETTERS, max_size=3), max_size=40)
    .map("".join)
    .map(lambda text: numbered(text))
    for grammar, markers in MARKERS.items()
}
FUZZ_CASES = int(os.environ.get("SPECGATE_FUZZ_CASES", "6000"))
FUZZ_SEED = int(os.environ.get("SPECGATE_FUZZ_SEED", "7"))


@st.composite
def mutated(draw: st.DrawFn, grammar: str) -> str:
    """A well-formed answer with markers dropped, doubled, swapped, and cut anywhere."""
    cities = draw(st.lists(st.text(LETTERS + 'ab"\\\n<', min_size=1, max_size=8), max_size=3))
    calls = "".join(any_call(grammar, draw(st.integers(0, 3)), city, number) for number, city in enumerate(cities))
    thought, content = draw(st.text(LETTERS, max_size=4)), draw(st.text(LETTERS + " ", max_size=4))
    units = cases.units(answer(grammar, thought, content, calls, rest="end"))
    places = [place for place, unit in enumerate(units) if len(unit) > 1]
    for _ in range(draw(st.integers(0, 3))):
        place, other = draw(st.sampled_from(places)), draw(st.sampled_from(places))
        match draw(st.sampled_from(["drop", "double", "swap"])):
            case "drop":
                units[place] = ""
            case "double":
                units[place] *= 2
            case _:
                units[place], units[other] = units[other], units[place]
    text = "".join(units)
    return numbered(text[: draw(st.integers(0, len(text)))])


def numbered(text: str) -> str:
    """The text with every letter another one, in rising order, so that what was lost, doubled or moved can be seen."""
    fresh = iter(NUMBERED)
    return "".join(chr(next(fresh)) if char in LETTERS else char for char in text)


def letters(text: str) -> list[str]:
    """The numbered letters of a text, those that JSON escapes among them."""
    decoded = re.sub(r"\\u([0-9a-fA-F]{4})", lambda match: chr(int(match[1], 16)), text)
    return [char for char in decoded if ord(char) in NUMBERED]


def check_nothing_vanishes(text: str, whole: ParsedMessage, *, nested: bool) -> None:
    """Every letter ends up in exactly one place or in a violation, in the order of the text.

    Elements that are `nested` are the exception: those of one name, and the text between them, stand together in JSON.
    """
    places = [whole.reasoning or "", whole.content or "", *(call.arguments for call in whole.tool_calls)]
    found = [letters(place) for place in places]
    for place in found[:2] if nested else found:
        assert place == sorted(place), ("out of order", place, whole)
    shown = [*itertools.chain(*found), *(char for call in whole.tool_calls for char in letters(call.id or call.name))]
    assert len(set(shown)) == len(shown), ("twice", whole)
    reported = {char for violation in whole.violations for char in letters(violation.raw)}
    names = {char for call in whole.tool_calls for char in letters(call.name)}
    missing = set(letters(text)) - {*shown, *reported, *names}
    assert not missing, (missing, whole)
    for violation in whole.violations:
        assert text.startswith(violation.raw, violation.position), ("not where it says", violation)


def check_laws(grammar: str, text: str, thinking: bool, cuts: Any) -> None:
    how: dict[str, Any] = {"grammar": grammar, "tools": TOOLS, "thinking": thinking}
    whole = parse(text, **how)
    assert cases.stream(text, **how) == whole
    places = sorted({0, len(text), *cuts})
    assert cases.stream((text[a:b] for a, b in itertools.pairwise(places)), **how) == whole
    check_nothing_vanishes(text, whole, nested=FORMATS[grammar].nested)
    for call, end in zip(whole.tool_calls, ends(text, **how), strict=True):
        if end.good:
            assert isinstance(json.loads(call.arguments), dict)
        else:
            assert any(violation.index == end.call for violation in whole.violations)


def ends(text: str, **how: Any) -> list[CallEnd]:
    parser = StreamParser(**how)
    return [event for event in [*parser.feed(text), *parser.finish()] if isinstance(event, CallEnd)]


def damage(steps: random.Random, grammar: str) -> str:
    """A good answer with up to four units dropped, doubled, swapped or replaced, and cut anywhere."""
    words = [*MARKERS[grammar] * 2, *WORDS, *LETTERS]
    if steps.random() < 0.4:
        return numbered("".join(steps.choices(words, k=steps.randint(1, 40))))
    calls = "".join(
        any_call(
            grammar, steps.randrange(4), "".join(steps.choices(LETTERS + 'a"\\\n<', k=steps.randint(1, 9))), number
        )
        for number in range(steps.randint(1, 3))
    )
    thought, content, rest = steps.choices(LETTERS, k=3)
    units = cases.units(answer(grammar, thought, content, calls, rest))
    for _ in range(steps.randint(0, 4)):
        place, other = steps.randrange(len(units)), steps.randrange(len(units))
        units[place] = steps.choice(["", units[place] * 2, units[other], steps.choice(words)])
    return numbered("".join(units)[: steps.randint(1, 2000)])


def test_the_laws_hold_in_many_random_cases() -> None:
    steps = random.Random(FUZZ_SEED)
    for number in range(FUZZ_CASES):
        grammar = steps.choice(sorted(GRAMMARS))
        text = damage(steps, grammar)
        cuts = sorted(steps.choices(range(len(text) + 1), k=steps.randint(0, 12)))
        try:
            check_laws(grammar, text, steps.random() < 0.5, cuts)
        except AssertionError as error:
            raise AssertionError(f"seed {FUZZ_SEED}, case {number}, {grammar}: {text!r}") from error


CUTS = st.lists(st.integers(0, 400), max_size=12)


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=400, deadline=None)
@given(data=st.data(), thinking=st.booleans(), cuts=CUTS)
def test_the_laws_hold_for_any_mixture_of_markers_and_text(
    grammar: str, data: st.DataObject, thinking: bool, cuts: list[int]
) -> None:
    text = data.draw(TEXTS[grammar])
    check_laws(grammar, text, thinking, [cut for cut in cuts if cut <= len(text)])


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=400, deadline=None)
@given(data=st.data(), thinking=st.booleans(), cuts=CUTS)
def test_the_laws_hold_for_damaged_answers(grammar: str, data: st.DataObject, thinking: bool, cuts: list[int]) -> None:
    text = data.draw(mutated(grammar))
    check_laws(grammar, text, thinking, [cut for cut in cuts if cut <= len(text)])


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=200, deadline=None)
@given(cities=st.lists(st.text(min_size=1, max_size=12).filter(lambda text: "<" not in text), min_size=1, max_size=4))
def test_well_formed_calls_come_back_as_they_were_written(grammar: str, cities: list[str]) -> None:
    cities = [city.replace("\r", "") or "x" for city in cities]
    for form in FORMATS[grammar].forms:
        calls = "".join(form(city, number) for number, city in enumerate(cities))
        message = parse(calls, grammar=grammar, tools=TOOLS)
        assert [json.loads(call.arguments) for call in message.tool_calls] == [
            {"city": city, "days": number} for number, city in enumerate(cities)
        ]
        assert (message.content, message.violations) == (None, ())


@pytest.mark.parametrize("row", cases.params(cases.traces("own")))
def test_a_trace_is_the_same_at_every_split_point_and_in_random_steps(row: dict[str, Any]) -> None:
    how = {key: row[key] for key in ("grammar", "tools", "thinking") if key in row}
    text = row["output_text"]
    whole = parse(text, **how)
    for place in range(len(text) + 1):
        assert cases.stream((text[:place], text[place:]), **how) == whole, place
    units = cases.units(text)
    for seed in range(20):
        steps = random.Random(seed)
        rest, pieces = list(units), []
        while rest:
            size = steps.randint(1, 5)
            pieces.append("".join(rest[:size]))
            rest = rest[size:]
        assert cases.stream(pieces, **how) == whole, seed


@pytest.mark.parametrize("row", cases.params(cases.traces("own")))
def test_a_trace_gives_what_it_says(row: dict[str, Any]) -> None:
    how = {key: row[key] for key in ("grammar", "tools", "thinking") if key in row}
    message = parse(row["output_text"], **how)
    assert message.reasoning == row.get("reasoning")
    assert message.content == row.get("content")
    assert [[call.id, call.name, call.arguments] for call in message.tool_calls] == row.get("calls", [])
    assert [violation.kind for violation in message.violations] == row.get("violations", [])


@pytest.mark.parametrize("grammar", GRAMMARS)
@settings(max_examples=200, deadline=None)
@given(data=st.data(), thinking=st.booleans(), size=st.integers(1, 9))
def test_splitting_reasoning_off_keeps_every_letter_behind_it(
    grammar: str, data: st.DataObject, thinking: bool, size: int
) -> None:
    text = data.draw(TEXTS[grammar])
    split = ReasoningSplit(grammar, thinking)
    parts = [split.feed(text[place : place + size]) for place in range(0, len(text), size)] + [split.finish()]
    whole = ReasoningSplit(grammar, thinking)
    once = [whole.feed(text), whole.finish()]
    assert "".join(part.rest for part in parts) == "".join(part.rest for part in once)
    assert "".join(part.reasoning for part in parts) == "".join(part.reasoning for part in once)
    rest = "".join(part.rest for part in once)
    assert text.endswith(rest)


@pytest.mark.parametrize("grammar", GRAMMARS)
@pytest.mark.parametrize("thinking", [True, False])
@pytest.mark.parametrize(
    "text", ["</think><think>Tokyo", "a</think><think>Tokyo</think>b", "<think>a</think>b<think>c</think>d"]
)
def test_a_second_thought_is_split_alike_in_any_chunks(grammar: str, thinking: bool, text: str) -> None:
    def split(pieces: list[str]) -> tuple[str, str]:
        stream = ReasoningSplit(grammar, thinking)
        parts = [stream.feed(piece) for piece in pieces] + [stream.finish()]
        return "".join(part.reasoning for part in parts), "".join(part.rest for part in parts)

    assert split([text]) == split(list(text))


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_every_state_of_a_table_that_holds_text_back_settles_it_at_the_end(grammar: str) -> None:
    table = GRAMMARS[grammar].table
    no_text_held = {State.REASONING, State.CONTENT, State.SECTION, State.BETWEEN, State.AFTER, State.REMAINS,
                    State.REMAINS_END, State.BARE}  # fmt: skip
    assert all(table[state].end is not None for state in table.keys() - no_text_held)


def test_arguments_stream_as_they_arrive() -> None:
    for grammar in GRAMMARS:
        text = good_call(grammar, "x" * 400, 3)
        parser = StreamParser(grammar, tools=TOOLS)
        place = text.index("x" * 400) + 200
        early = fold(parser.feed(text[:place]))
        assert len(early.tool_calls[0].arguments) >= 200, grammar


BEGUN = [
    ("kimi_k2", "<|tool_calls_section_begin|>"),
    ("kimi_k2", "<|tool_call_begin|>functions.get_"),
    ("deepseek_v3", "<｜tool▁call▁begin｜>"),
    ("deepseek_v3", "<｜tool▁call▁begin｜>function<｜tool▁sep｜>get_"),
    ("hermes", "<tool_call>{"),
    ("hermes", '<tool_call>{"'),
    ("hermes", '<tool_call>{"name": "get_'),
    ("hermes", '<tool_call>{"name": "get_weather", "arguments": {"city": "Bern"}, "'),
    ("qwen3_coder", '<tool_call>{"name": "get_'),
    ("glm47", "<tool_call>get_weather<arg_key>"),
    ("glm47", "<tool_call>get_weather<arg_key>city</arg_key><arg_value>Bern</arg_value><arg_key>"),
    ("mistral", "[TOOL_CALLS]get_weather[CALL_ID]"),
    ("gemma4", "<|tool_call>call:get_weather{"),
    ("kimi_k3", "<|open|>"),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="get_'),
    ("kimi_k3", '<|open|>tools<|sep|><|open|>call tool="get_weather"<|sep|><|open|>argument key="'),
    ("harmony", "<|start|>"),
    ("harmony", "<|channel|>analysis "),
    ("harmony", "<|channel|>commentary to=functions.get_"),
]


@pytest.mark.parametrize(("grammar", "begun"), BEGUN)
@pytest.mark.parametrize("word", ["x", "x y\n"])
def test_a_header_key_or_name_without_end_is_told_of_before_the_output_ends(
    grammar: str, begun: str, word: str
) -> None:
    text = begun + numbered(word.replace("x", "あ") * 1100)
    events = StreamParser(grammar, tools=TOOLS).feed(text)
    assert any(isinstance(event, Fault) for event in events)
    places = random.Random(7).choices(range(len(text)), k=40)
    for rest in ("", any_call(grammar, 0, "Bern", 1)):
        check_laws(grammar, text + rest, thinking=False, cuts=places)


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_a_whole_answer_may_hold_any_number_of_calls(grammar: str) -> None:
    call = good_call(grammar, "Bern", 1)
    assert len(parse(wrapped(grammar, call * 500), grammar, TOOLS).tool_calls) == 500


@pytest.mark.parametrize(
    ("grammar", "text"),
    [
        ("gemma4", "<|tool_call>" + "call:get_weather{}" * 500),
        ("bare", f"[{'get_weather(), ' * 500}"),
        ("bare", '{"name": "get_weather", "parameters": {}}\n' * 500),
    ],
)
def test_calls_that_no_marker_parts_may_be_any_number(grammar: str, text: str) -> None:
    assert len(parse(text, grammar, TOOLS).tool_calls) == 500


def test_a_call_starts_before_its_arguments_and_only_once() -> None:
    for grammar in GRAMMARS:
        found = cases.events(good_call(grammar, "Bern", 1), grammar=grammar, tools=TOOLS)
        assert isinstance(found[0], CallStart)
        assert isinstance(found[-1], CallEnd)
        assert sum(isinstance(event, CallStart) for event in found) == 1


@pytest.mark.parametrize("grammar", GRAMMARS)
def test_an_argument_that_comes_twice_is_reported_once(grammar: str) -> None:
    message = parse(with_second_city(grammar), grammar, TOOLS)
    assert [violation.kind for violation in message.violations] == ["duplicate_argument"]
    assert "Bern" in message.tool_calls[0].arguments
    assert "Rome" in message.tool_calls[0].arguments


def one_marker_off(grammar: str, text: str) -> Iterator[tuple[str, str]]:
    """The text with one of its markers dropped, doubled, or turned into another, and what was done."""
    markers = list(dict.fromkeys(GRAMMARS[grammar].token_ids.values()))
    units = cases.units(text)
    for place, unit in enumerate(units):
        if unit in markers:
            for other in ["", unit * 2, *markers]:
                if other != unit:
                    yield f"{unit} {place} -> {other!r}", "".join([*units[:place], other, *units[place + 1 :]])


@pytest.mark.parametrize("grammar", ["kimi_k3", "harmony"])
@pytest.mark.parametrize("form", range(3))
@pytest.mark.parametrize("calls", [1, 2])
def test_one_marker_off_costs_no_call_without_a_report(grammar: str, form: int, calls: int) -> None:
    good = "".join(any_call(grammar, form, "Bern", number) for number in range(calls))
    for thinking, text in ((False, good), (True, answer(grammar, "Hm.", "Well.", good, rest=""))):
        expected = parse(text, grammar, TOOLS, thinking)
        assert len(expected.tool_calls) == calls
        for what, damaged in one_marker_off(grammar, text):
            message = parse(damaged, grammar, TOOLS, thinking)
            assert message.violations or message == expected, what
