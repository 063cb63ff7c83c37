"""The incremental JSON check: agrees with a full parser at every prefix and for every chunking, in linear time."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.guard.core.json_prefix import JsonPrefix
from serve.parsing.strict_json import loads

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
        assert check.feed(char) == 1
        assert check.complete == accepts(text[: place + 1])


@given(st.text(alphabet='{}[]",:\\u0123456789eE+-.truefalsn \n\x01é', max_size=30), st.data())
def test_verdicts_do_not_depend_on_the_cuts_and_agree_with_a_full_parser(text: str, data: st.DataObject) -> None:
    whole, cut = JsonPrefix(), JsonPrefix()
    taken = whole.feed(text)
    rest, taken_in_pieces = text, 0
    while rest:
        size = data.draw(st.integers(1, len(rest)))
        taken_in_pieces += cut.feed(rest[:size])
        rest = rest[size:]
    assert (taken, whole.broken, whole.complete) == (taken_in_pieces, cut.broken, cut.complete)
    assert whole.broken == (taken < len(text))
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
        check = JsonPrefix(must_be_object=True)
        check.feed(text)
        assert check.broken is broken


def test_deep_nesting_needs_no_recursion() -> None:
    check = JsonPrefix()
    assert check.feed("[" * 100_000 + "]" * 100_000) == 200_000
    assert check.complete


@given(st.integers(0, 40), st.sampled_from(["", " ", "}", ",", "x", '{"a": 1}']), st.booleans(), st.booleans())
def test_a_long_text_is_judged_as_its_pieces_are(short: int, after: str, in_list: bool, must_be_object: bool) -> None:
    text = json.dumps({"a": ["x\n"] * 600, "b": {"c": 1.5}})
    text = (f"[{text}]" if in_list else text)[: -short or None] + after
    whole, pieces = (JsonPrefix(must_be_object=must_be_object) for _ in range(2))
    taken = whole.feed(text)
    in_pieces = sum(pieces.feed(text[start : start + 50]) for start in range(0, len(text), 50) if not pieces.broken)
    assert (taken, whole.broken, whole.complete) == (in_pieces, pieces.broken, pieces.complete)
    if whole.complete:
        whole.feed("{")
        assert whole.broken
