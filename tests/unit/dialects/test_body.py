"""Bodies as JSON objects."""

import json

import pytest

from serve.dialects.body import read_object, written
from serve.errors import InvalidRequestError


@pytest.mark.parametrize(
    ("body", "value"),
    [
        (b'\xef\xbb\xbf{"a": 1}', {"a": 1}),
        (b'{"a": "cut \\ud83d"}', {"a": "cut \ufffd"}),
        (b'{"a": "\\ud83d\\ude42"}', {"a": "\U0001f642"}),
    ],
)
def test_a_body_is_read_although_a_client_cut_its_texts(body: bytes, value: object) -> None:
    assert read_object(body) == value


@pytest.mark.parametrize("body", [b"", b" ", b"[]", b"{", b"\xff", b'{"a": NaN}', b"[" * 100_000])
def test_what_is_no_object_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        read_object(body)


@pytest.mark.parametrize("unit", ["{},", "[],", "1,", '"",', '"a",', '{"a":1},', "[[[[1]]]],"])
def test_a_body_of_countless_values_is_refused_before_it_is_decoded(unit: str) -> None:
    with pytest.raises(InvalidRequestError, match="more than 150000 values"):
        read_object(f'{{"a": [{unit * 150_001}0]}}'.encode())


@pytest.mark.parametrize("text", ["a, {b}, [c]\n" * 100_000, '{"a": [1, 2]}, ' * 50_000])
def test_a_text_that_looks_like_countless_values_is_one(text: str) -> None:
    body = {"a": text, "b": [text[:5_000], 1]}
    assert read_object(json.dumps(body).encode()) == body
    assert written(body, 2_000_000) == written(body, 1)


def test_a_cut_emoji_in_a_body_of_megabytes_is_mended() -> None:
    assert read_object(b'{"a": "%b\\ud83d"}' % (b"x" * 2_000_000)) == {"a": "x" * 2_000_000 + "\ufffd"}
