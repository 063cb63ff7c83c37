"""Bodies as JSON objects."""

import pytest

from serve.dialects.body import read_object
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
