"""Bodies that odd clients write become JSON, and sound ones stay the same bytes."""

import json

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.request import mending
from serve.request.mending import mend


@given(st.text().map(lambda text: json.dumps({"content": text}).encode()))
def test_a_sound_body_comes_back_as_it_is(body: bytes) -> None:
    assert mend(body) is body


@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_half_pairs_become_replacement_characters(text: str) -> None:
    mended = json.loads(mend(json.dumps({"content": text}).encode()))
    units = text.encode("utf-16-le", "surrogatepass")
    assert mended == {"content": units.decode("utf-16-le", "replace")}


ESCAPES = st.sampled_from([r"\ud83d", r"\ude00", r"\uD83D", r"\u0041", r"\n", "\\\\", "ud83d", "x", "\\\\" * 40])


@given(st.lists(ESCAPES).map("".join))
def test_half_pairs_are_told_from_text_that_looks_like_them_whatever_stands_before(source: str) -> None:
    body = f'{{"content": "{source}"}}'.encode()
    units = json.loads(body)["content"].encode("utf-16-le", "surrogatepass")
    assert msgspec.json.decode(mend(body)) == {"content": units.decode("utf-16-le", "replace")}


def test_a_byte_order_mark_goes() -> None:
    assert mend(b"\xef\xbb\xbf{}") == b"{}"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe{", b"{", rb'{"a":"\ud8'])
def test_what_cannot_be_mended_is_left_to_the_decoder(body: bytes) -> None:
    assert mend(body) is body


@given(st.text(st.sampled_from("\\ud83d\ude00a0\ud83d\udc00")), st.integers(1, 12))
def test_half_pairs_are_found_whatever_the_windows_cut(text: str, window_bytes: int) -> None:
    source = text.encode("utf-8", "surrogatepass")
    whole = mend(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(mending, "_WINDOW_BYTES", window_bytes)
        assert mend(source) == whole
