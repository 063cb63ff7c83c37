"""Decoding as tokens arrive: the same text however they are cut, never half a character."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.tokenizer import KimiTokenizer, TokenIdError

IDS = st.lists(st.integers(0, 1279) | st.integers(0, 255), max_size=60)


@given(IDS, st.data())
def test_any_cut_gives_the_decoded_whole(tiny: KimiTokenizer, ids: list[int], data: st.DataObject) -> None:
    cuts = sorted(data.draw(st.lists(st.integers(0, len(ids)), max_size=8)))
    stream, pieces = tiny.stream(), []
    for start, end in zip([0, *cuts], [*cuts, len(ids)], strict=True):
        pieces.append(stream.feed(ids[start:end]))
    pieces.append(stream.finish())
    assert "".join(pieces) == tiny.decode(ids)


@given(st.text(st.characters(exclude_categories=["Cs"]), max_size=40))
def test_valid_text_never_shows_a_replacement_on_the_way(tiny: KimiTokenizer, text: str) -> None:
    stream, shown = tiny.stream(), ""
    for byte in text.encode():
        shown += stream.feed([byte])
        assert text.startswith(shown)
    assert shown + stream.finish() == text
    assert not stream.truncated


def test_a_cut_character_at_the_end_is_one_replacement_and_is_reported(tiny: KimiTokenizer) -> None:
    stream = tiny.stream()
    assert stream.feed("ok🙂".encode()[:-1]) == "ok"
    assert not stream.truncated
    assert stream.finish() == "�"
    assert stream.truncated


def test_a_special_token_within_a_character_ends_it(tiny: KimiTokenizer) -> None:
    stream = tiny.stream()
    marker = tiny.token_to_id("<|tool_call_begin|>")
    assert stream.feed([0xF0, 0x9F, marker]) == "�<|tool_call_begin|>"


def test_a_bad_id_leaves_the_stream_as_it_was(tiny: KimiTokenizer) -> None:
    stream = tiny.stream()
    stream.feed([0xE5])
    with pytest.raises(TokenIdError, match="-1"):
        stream.feed([0xA5, -1])
    assert stream.feed([0xA5, 0xBD]) == "好"


def test_skipped_tokens_leave_no_text(tiny: KimiTokenizer) -> None:
    stream = tiny.stream(skip_special_tokens=True)
    ids = tiny.encode("a<|im_end|>b</think>", allow_special=True)
    assert stream.feed(ids) + stream.finish() == "ab</think>"
