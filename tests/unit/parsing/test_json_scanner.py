"""The JSON scanner stops at the same signs however the text is cut, and finds the end that a full parser finds."""

import json

from hypothesis import given
from hypothesis import strategies as st

from serve.parsing.json_scanner import JsonScanner

VALUES = st.recursive(
    st.none() | st.booleans() | st.integers() | st.text(max_size=8),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=5), inner, max_size=3),
    max_leaves=10,
)
CONTAINERS = st.lists(VALUES, max_size=3) | st.dictionaries(st.text(max_size=5), VALUES, max_size=3)
SIGNS = '{}[]",:\\a '


def cut(text: str, data: st.DataObject) -> list[str]:
    pieces = []
    while text:
        size = data.draw(st.integers(1, len(text)))
        pieces.append(text[:size])
        text = text[size:]
    return pieces


def signs(pieces: list[str], depth: int) -> tuple[list[int], JsonScanner]:
    """Where the scanner stops, in characters from the beginning, and the scanner."""
    scanner = JsonScanner()
    stops = []
    before = 0
    for piece in pieces:
        place = 0
        while place < len(piece) and (place := scanner.feed(piece, place, depth)) >= 0:
            stops.append(before + place)
        before += len(piece)
    return stops, scanner


@given(st.text(alphabet=SIGNS, max_size=30), st.integers(0, 2), st.data())
def test_stops_do_not_depend_on_the_cuts(text: str, depth: int, data: st.DataObject) -> None:
    stops, whole = signs([text], depth)
    stops_in_pieces, in_pieces = signs(cut(text, data), depth)
    assert stops == stops_in_pieces
    assert (whole.depth, whole.in_string) == (in_pieces.depth, in_pieces.in_string)


@given(CONTAINERS, st.booleans())
def test_the_last_bracket_is_the_end_of_the_document(value: object, escape: bool) -> None:
    text = json.dumps(value, ensure_ascii=escape)
    stops, scanner = signs([text], 0)
    assert stops == [1, len(text)]
    assert (scanner.depth, scanner.in_string) == (0, False)


@given(CONTAINERS, st.data())
def test_strings_alone_are_followed_as_well_as_with_brackets(value: object, data: st.DataObject) -> None:
    strings = JsonScanner()
    both = JsonScanner()
    for piece in cut(json.dumps(value, ensure_ascii=data.draw(st.booleans())), data):
        both.feed(piece, depth=-1)
        assert strings.feed_strings(piece) == both.in_string


def test_where_a_whole_document_is_escaped_no_string_opens() -> None:
    scanner = JsonScanner()
    assert not any(map(scanner.feed_strings, ['{\\"city', '\\": \\', '"x\\"}']))
