"""Ids of tokens leave no trace in an answer, wherever its members stand and however the network cuts it."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.stream.line import Line
from serve.stream.token_ids import TokenIds

IDS = st.none() | st.lists(st.integers(-1, 300_000), max_size=4)
# What looks like the members, but is text of a model.
TEXTS = st.text(max_size=8) | st.sampled_from(
    ['"token_ids":[1]', ',"prompt_token_ids": null', "token_ids", '{"token_ids"']
)
OBJECTS = st.dictionaries(TEXTS.filter(lambda name: "token_ids" not in name), TEXTS | st.integers(), max_size=3)
SPACES = st.sampled_from([(",", ":"), (", ", ": "), (" , ", " : ")])


def with_members(draw: st.DrawFn, plain: dict[str, Any], ids: dict[str, Any]) -> dict[str, Any]:
    """The members of both in any order."""
    both = draw(st.permutations([*plain.items(), *ids.items()]))
    return dict(both)


@st.composite
def chunks(draw: st.DrawFn) -> tuple[dict[str, Any], dict[str, Any], list[int] | None, list[int] | None]:
    """A chunk without ids and the same with them, and what they are."""
    written, prompt = draw(IDS), draw(IDS)
    choice, envelope = draw(OBJECTS), draw(OBJECTS)
    choice_with = with_members(draw, choice, {"token_ids": written})
    members = {"choices": [choice_with], **envelope}
    whole = with_members(draw, members, {"prompt_token_ids": prompt})
    plain = {name: [choice] if name == "choices" else value for name, value in whole.items()}
    del plain["prompt_token_ids"]
    return plain, whole, written, prompt


@given(st.lists(chunks(), max_size=5), SPACES, st.booleans(), st.lists(st.integers(0, 10_000), max_size=8))
def test_a_stream_without_its_ids_is_the_stream_that_was_meant(
    sent: list[Any], spaces: tuple[str, str], ascii_only: bool, cuts: list[int]
) -> None:
    def frame(chunk: dict[str, Any]) -> bytes:
        return f"data: {json.dumps(chunk, separators=spaces, ensure_ascii=ascii_only)}\n\n".encode("utf-8", "replace")

    data = b"".join(frame(whole) for _, whole, _, _ in sent)
    ids = TokenIds()
    line = Line([ids])
    places = [0, *sorted(cut % (len(data) + 1) for cut in cuts), len(data)]
    out = b"".join(line.feed(data[start:stop]) for start, stop in pairwise(places)) + line.finish()
    got = [json.loads(each.removeprefix(b"data: ")) for each in out.split(b"\n\n") if each]
    assert got == [json.loads(frame(plain).removeprefix(b"data: ")) for plain, _, _, _ in sent]
    assert ids.written == [each for _, _, written, _ in sent for each in written or ()]
    assert ids.prompt == next((prompt for _, _, _, prompt in reversed(sent) if prompt), [])


@given(chunks(), SPACES)
def test_a_whole_answer_is_left_without_its_ids(sent: Any, spaces: tuple[str, str]) -> None:
    plain, whole, written, prompt = sent
    ids = TokenIds()
    assert json.loads(ids.whole(json.dumps(whole, separators=spaces).encode())) == plain
    assert (ids.written, ids.prompt) == (written or [], prompt or [])


@pytest.mark.parametrize("value", ["[1,,2]", "[-]", "[1 2]"])
def test_ids_that_are_no_numbers_are_none(value: str) -> None:
    ids = TokenIds()
    assert ids.edit(f'data: {{"a":1,"token_ids":{value}}}\n\n'.encode()) == b'data: {"a":1}\n\n'
    assert ids.written == []


def test_the_ids_of_a_long_prompt_do_not_make_a_frame_too_long() -> None:
    prompt = [199_999] * 200_000
    frame = b'data: {"prompt_token_ids":' + json.dumps(prompt).encode() + b',"choices":[]}\n\n'
    ids = TokenIds(prompt_bytes=200_000)
    line = Line([ids])
    parts = [line.feed(frame[start : start + 65_536]) for start in range(0, len(frame), 65_536)]
    assert b"".join(parts) == b'data: {"choices":[]}\n\n'
    assert ids.prompt == prompt
