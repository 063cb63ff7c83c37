"""Long JSON is read as the decoder itself would read it, whatever is in its texts, and short work remains bounded."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw, Struct

from serve.errors import InvalidRequestError
from serve.request.long_json import MOST_AT_ONCE_BYTES, LongJson, decode, encode

ANYTHING = msgspec.json.Decoder(Any)
UNITS = st.sampled_from(["a", '"', "\\", "\n", "天", "😀", "\u007f", "{", "]", ":", ",", "\\u0041"])
LONG_TEXTS = st.builds(lambda units, times: "".join(units) * times, st.lists(UNITS, max_size=6), st.integers(0, 1500))
DOCUMENTS = st.recursive(
    st.one_of(LONG_TEXTS, st.integers(-9, 9), st.none()),
    lambda inner: st.one_of(st.lists(inner, max_size=3), st.dictionaries(LONG_TEXTS, inner, max_size=3)),
    max_leaves=6,
)


class Message(Struct):
    content: Raw = Raw(b"null")
    role: str = ""


class Body(Struct):
    model: str
    messages: list[Message] = []
    members: dict[str, Raw] = {}


@given(DOCUMENTS, st.booleans())
def test_whatever_texts_hold_it_is_read_as_a_whole(document: Any, ascii_only: bool) -> None:
    whole = json.dumps(document, ensure_ascii=ascii_only).encode()
    long = LongJson(whole)
    assert long.decode(ANYTHING) == document
    assert long.filled(long.short) == whole


@given(DOCUMENTS)
def test_what_was_read_is_written_as_any_other(document: Any) -> None:
    assert encode(document) == msgspec.json.encode(document)


@pytest.mark.parametrize("unit", ["a", "天", "😀", '"', "\\", "\n", "\u007f"])
def test_a_text_of_many_pieces_is_written_as_a_short_one(unit: str) -> None:
    document = {"a": [unit * 600_001], "b": unit}
    assert encode(document) == msgspec.json.encode(document)


@given(LONG_TEXTS, LONG_TEXTS)
def test_members_keep_their_bytes(text: str, name: str) -> None:
    members = {"model": text, "messages": [{"content": [{"text": text}, text], "role": name}], "members": {name: text}}
    whole = json.dumps(members).encode()
    body = LongJson(whole).decode(msgspec.json.Decoder(Body))
    as_ever = msgspec.json.decode(whole, type=Body)
    assert (body.model, body.messages[0].role) == (text, name)
    assert bytes(body.messages[0].content) == bytes(as_ever.messages[0].content)
    assert {each: bytes(raw) for each, raw in body.members.items()} == {name: json.dumps(text).encode()}


BROKEN = {
    "a control character": b"a\nb",
    "an unknown escape": rb"\q",
    "a cut escape": rb"\u00",
    "half a surrogate pair": rb"\ud83d",
}


@pytest.mark.parametrize("broken", BROKEN.values(), ids=BROKEN)
@pytest.mark.parametrize("before", [2_000, 3 * 1024 * 1024 + 1])
@pytest.mark.parametrize("behind", [0, 5, 3_000_000])
def test_a_malformed_text_is_found_wherever_it_is(broken: bytes, before: int, behind: int) -> None:
    whole = b'["%b%b%b"]' % (b"x" * before, broken, b"y" * behind)
    with pytest.raises(msgspec.DecodeError):
        LongJson(whole).decode(ANYTHING)


@pytest.mark.parametrize("unit", [rb"\u0041", rb"\ud83d\ude00", rb"\\", rb"\"", rb"\\\"", "天".encode(), rb"\n"])
@pytest.mark.parametrize("shift", range(3))
def test_a_text_of_nothing_but_escapes_is_read(unit: bytes, shift: int) -> None:
    whole = b'["%b%b"]' % (b"x" * shift, unit * 400_000)
    assert LongJson(whole).decode(ANYTHING) == msgspec.json.decode(whole)


@pytest.mark.parametrize("tail", [b"", b'"', b"]", rb"\"]", b'"]]', b'",]', b'"] "'])
def test_a_document_that_does_not_end_is_malformed(tail: bytes) -> None:
    with pytest.raises(msgspec.DecodeError) as error:
        LongJson(b'["' + b"x" * 5_000 + tail).decode(ANYTHING)
    assert "byte" not in str(error.value), "a place in what was left would mislead"


@pytest.mark.parametrize("unit", ["1,", "12345678,", "true,", " ", '"short text",', "[],", '{"a":0},'])
def test_what_is_not_in_long_texts_is_bounded(unit: str) -> None:
    dense = unit * (MOST_AT_ONCE_BYTES // len(unit) + 1)
    with pytest.raises(InvalidRequestError, match=r"beside its long texts|150000 texts"):
        decode(ANYTHING, f'{{"picture":"{"A" * MOST_AT_ONCE_BYTES}","x":[{dense}0]}}'.encode())


def test_a_stand_in_that_a_client_guesses_is_a_text_like_any_other() -> None:
    whole = json.dumps(["x" * 2_000, "0" * 24 + "00000000"]).encode()
    assert LongJson(whole).decode(ANYTHING) == json.loads(whole)


def test_json_that_is_not_long_is_read_at_once() -> None:
    assert decode(ANYTHING, b"[1]") == [1]
    with pytest.raises(msgspec.DecodeError, match=r"byte 1"):
        decode(ANYTHING, b"[x]")


def test_countless_texts_are_not_looked_at_one_by_one() -> None:
    with pytest.raises(InvalidRequestError, match="more than 150000 texts"):
        LongJson(b'["%b",%b""]' % (b"x" * 2_000, b'"",' * 200_000))
