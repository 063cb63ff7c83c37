"""The engine's own name of a model never reaches the client, and nothing else changes."""

import json
from collections.abc import Sequence
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import encode_frame
from serve.stream.frame import Frame
from serve.stream.line import Line, Stage
from serve.stream.stages import Rename

SERVED = "/model_files/kimi-k2.6/"


@pytest.mark.parametrize(
    "spelling",
    [
        b'"model":"/model_files/kimi-k2.6/"',
        b'"model": "/model_files/kimi-k2.6/"',
        b'"model":"\\/model_files\\/kimi-k2.6\\/"',
    ],
)
def test_however_it_is_spelt(spelling: bytes) -> None:
    body = b'{"id":"1",' + spelling + b',"choices":[]}'
    assert json.loads(Rename(SERVED, "kimi").whole(body)) == {"id": "1", "model": "kimi", "choices": []}


@pytest.mark.parametrize("served", ["modèle", 'a"b', "a\\b", "名"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_odd_names_are_found_and_given(served: str, ascii_only: bool) -> None:
    body = json.dumps({"model": served}, ensure_ascii=ascii_only).encode()
    assert json.loads(Rename(served, served[::-1]).whole(body)) == {"model": served[::-1]}


names = st.text(min_size=1, max_size=12)
texts = st.one_of(st.text(max_size=30), st.just(json.dumps({"model": SERVED})), st.just(f'"model":"{SERVED}"'))


@given(texts, st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_a_stream_has_our_name_and_its_texts_unchanged_wherever_it_is_cut(
    text: str, cuts: list[int], end: bool
) -> None:
    chunks = [{"model": SERVED, "choices": [{"delta": {"content": text, "model_": SERVED}}]}, {"model": "other"}]
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    stream = stream if end else stream.rstrip()
    line = Line([Rename(SERVED, "kimi")])
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    out = b"".join(line.feed(stream[a:b]) for a, b in pairwise(edges)) + line.finish()
    got = [json.loads(line[6:]) for line in out.splitlines() if line]
    assert got == [{**chunks[0], "model": "kimi"}, chunks[1]]


@given(names, names)
def test_any_name_can_stand_for_any_other(served: str, ours: str) -> None:
    body = json.dumps({"model": served, "text": served}).encode()
    assert json.loads(Rename(served, ours).whole(body)) == {"model": ours, "text": served}


class Parsing(Stage):
    """Reads every frame, as the guard does."""

    def __init__(self) -> None:
        self.known = 0

    def feed(self, frame: Frame) -> Sequence[Frame]:
        if frame.template is not None:
            self.known += 1
        elif (data := frame.data()) is not None:
            assert frame.parsed(data)["model"] == "kimi"
        return (frame,)


@given(st.lists(texts.filter(bool), min_size=4, max_size=8))
def test_frames_that_are_known_by_their_bytes_have_our_name_too(words: list[str]) -> None:
    after = Parsing()
    line = Line([Rename(SERVED, "kimi"), after])
    sent = [{"model": SERVED, "choices": [{"index": 0, "delta": {"content": word}}]} for word in words]
    got = [json.loads(line.feed(encode_frame(chunk))[6:]) for chunk in sent]
    assert got == [{**chunk, "model": "kimi"} for chunk in sent]
    assert after.known


def test_a_line_without_end_is_not_kept() -> None:
    line = Line([Rename(SERVED, "kimi")])
    sent = sum(len(line.feed(b"x" * 100_000)) for _ in range(100))
    assert sent > 8_000_000
    assert sent + len(line.finish()) == 10_000_000 + len(b"\n\n")
