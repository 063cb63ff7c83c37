"""The incremental JSON check: agrees with a full parser at every prefix and for every chunking, in linear time."""

import json
import re
import sys
import weakref
from types import FrameType

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from serve.guard.core.json_prefix import JsonPrefix
from serve.parsing.strict_json import loads, with_escapes

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False, allow_infinity=False) | st.text(),
    lambda inner: st.lists(inner, max_size=4) | st.dictionaries(st.text(max_size=6), inner, max_size=4),
    max_leaves=12,
)


def accepts(text: str) -> bool:
    try:
        loads(text)
    except ValueError:
        return False
    return True


@given(VALUES, st.booleans(), st.sampled_from([None, 2]))
def test_every_prefix_of_a_document_is_accepted_and_only_the_whole_is_complete(
    value: object, escape: bool, indent: int | None
) -> None:
    text = json.dumps(value, ensure_ascii=escape, indent=indent)
    check = JsonPrefix()
    for place, char in enumerate(text):
        check.feed(char)
        assert not check.broken
        assert check.complete == accepts(text[: place + 1])


@given(st.text(alphabet='{}[]",:\\u0123456789eE+-.truefalsn \n\x01é', max_size=30), st.data())
def test_verdicts_do_not_depend_on_the_cuts_and_agree_with_a_full_parser(text: str, data: st.DataObject) -> None:
    whole, cut = JsonPrefix(), JsonPrefix()
    whole.feed(text)
    rest = text
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        cut.feed(rest[:size])
        rest = rest[size:]
    assert (whole.broken, whole.complete) == (cut.broken, cut.complete)
    assert whole.complete == accepts(text)


@pytest.mark.parametrize(
    "text",
    ["{{", '{"a" 1', "[1,]", '{"a":1,}', "01", "1.e", "nul]", '"\x01', '"\\x"', "{} {}", "NaN", '"\\u12g4"', "}"],
)
def test_what_begins_no_document_is_broken(text: str) -> None:
    check = JsonPrefix()
    check.feed(text)
    assert check.broken
    assert not check.complete


def test_where_an_object_is_demanded_nothing_else_will_do() -> None:
    for text, broken in (("[1]", True), ('"{}"', True), (" \n{}", False), ("", False)):
        check = JsonPrefix(begins="{")
        check.feed(text)
        assert check.broken is broken


@pytest.mark.parametrize("bracket", ["[", '{"a":', '[{"":'])
@pytest.mark.parametrize("size", [1, 7, 1_000_000])
def test_what_is_nested_deeper_than_any_parser_reads_is_broken_at_once(bracket: str, size: int) -> None:
    text = bracket * 100_000
    check = JsonPrefix()
    for start in range(0, 10_000 if size < 1_000 else len(text), size):
        check.feed(text[start : start + size])
    assert check.broken


def test_deep_nesting_that_parsers_read_is_fine_in_any_chunking() -> None:
    text = "[" * 490 + "]" * 490
    for size in (1, 100, 1_000):
        check = JsonPrefix()
        for start in range(0, len(text), size):
            check.feed(text[start : start + size])
        assert check.complete


AHEAD = " " * 200  # so much text is read ahead; where it is in a string or a number, it is read as any other
PIECES = [
    "{", "}", "[", "]", '"', '""', '"a"', ":", ",", " ", "0", "-", "1.5", "e", "1", ".", "true", "nul", "l", "\\",
    '\\"', "\\\\", "\\u12", "\\u00e9", "é", "\ud800", "\x01", "\n", '{"a":', "[1,", '"k":[', "]]", "},", '"}', '",',
]  # fmt: skip


PAIR = re.compile(r"\\u[dD][89abAB][0-9a-fA-F]{2}\\u[dD][c-fC-F][0-9a-fA-F]{2}")
# Half a pair makes a document that can't be encoded: reading ahead says so at once, its end says so for the rest.
HALF = re.compile(r"\\u[dD][89a-fA-F]")


def mutated(value: object, place: int, piece: str) -> str:
    text = json.dumps(value)
    place = min(place, len(text))
    return text[:place] + piece + text[place + len(piece) % 2 :]


@given(
    st.lists(st.sampled_from(PIECES), max_size=25).map("".join)
    | st.builds(mutated, VALUES, st.integers(0, 60), st.sampled_from(["", *PIECES])),
    st.integers(0, 40),
    st.integers(0, 40),
    st.sampled_from(["", "{", '{"']),
)
def test_reading_ahead_says_the_same_as_reading_character_by_character(
    text: str, start: int, stop: int, begins: str
) -> None:
    assume(not HALF.search(PAIR.sub("", text)))
    stop = max(start, stop)
    pieces = [text[:start], AHEAD + text[start:stop], AHEAD + text[stop:]]
    long, single = (JsonPrefix(begins=begins) for _ in range(2))
    for piece in pieces:
        long.feed(piece)
        for char in piece:
            single.feed(char)
        assert (long.broken, long.complete) == (single.broken, single.complete)


DENSE = {
    "brackets": '{"a":' + "[" * 1_000_000,
    "numbers": '{"a":[' + "1," * 500_000,
    "digits": '{"a":[' + "1" * 1_000_000,
    "empty strings": '{"a":[' + '"",' * 300_000,
    "escapes": '{"a":"' + "\\u0041\\n" * 120_000,
    "escaped quotes": '{"a":[' + '"\\"",' * 200_000,
    "objects": '{"a":[' + '{"b":{}},' * 110_000,
    "lists in lists": '{"a":[' + "[[[[[1]]]]]," * 80_000,
    "deep lists": '{"a":[' + ("[" * 400 + "]" * 400 + ",") * 1_200,
    "members": "{" + '"a":1,' * 160_000,
    "space": "{" + " " * 1_000_000,
    "quotes": '{"a":' + '"' * 1_000_000,
    "control characters": '{"a":' + "\x01" * 1_000_000,
}


@given(
    st.lists(st.sampled_from(['{"a": "', '", "', '": "', '"}', "[", "]", "\n", "\t", "\\", '\\"', "xy" * 40, " "])),
    st.sampled_from([1, 7, 150, 9999]),
)
def test_a_lenient_check_takes_raw_ends_of_lines_in_strings_for_their_escapes(parts: list[str], size: int) -> None:
    text = "".join(parts)
    lenient, strict = JsonPrefix(lenient=True), JsonPrefix()
    for start in range(0, len(text), size):
        lenient.feed(text[start : start + size])
    strict.feed(with_escapes(text))
    assert (lenient.broken, lenient.complete) == (strict.broken, strict.complete)
    if not lenient.broken:
        assert lenient.unescaped == (with_escapes(text) != text)


@pytest.mark.parametrize("size", [1_000_000, 32_768])
@pytest.mark.parametrize("text", DENSE.values(), ids=DENSE)
def test_a_megabyte_takes_few_steps_whatever_is_in_it(text: str, size: int) -> None:
    check = JsonPrefix()
    pieces = [text[start : start + size] for start in range(0, len(text), size)]
    calls = 0

    def count(_: FrameType, event: str, __: object) -> None:
        nonlocal calls
        calls += event in ("call", "c_call")

    sys.setprofile(count)
    try:
        for piece in pieces:
            check.feed(piece)
    finally:
        sys.setprofile(None)
    assert calls < len(text) / 100 + 100 * len(pieces)


def test_a_prefix_is_gone_with_its_last_user_and_not_only_when_the_collector_comes() -> None:
    prefix = JsonPrefix()
    prefix.feed('{"a": [1, "b')
    left = weakref.ref(prefix)
    del prefix
    assert left() is None
