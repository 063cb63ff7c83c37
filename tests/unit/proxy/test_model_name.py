"""The engine's own name of a model never reaches the client, and nothing else changes."""

import json
from itertools import pairwise

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.proxy.model_name import ModelName

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
    assert json.loads(ModelName(SERVED, "kimi").whole(body)) == {"id": "1", "model": "kimi", "choices": []}


@pytest.mark.parametrize("served", ["modèle", 'a"b', "a\\b", "名"])
@pytest.mark.parametrize("ascii_only", [True, False])
def test_odd_names_are_found_and_given(served: str, ascii_only: bool) -> None:
    body = json.dumps({"model": served}, ensure_ascii=ascii_only).encode()
    assert json.loads(ModelName(served, served[::-1]).whole(body)) == {"model": served[::-1]}


names = st.text(min_size=1, max_size=12)
texts = st.one_of(st.text(max_size=30), st.just(json.dumps({"model": SERVED})), st.just(f'"model":"{SERVED}"'))


@given(texts, st.lists(st.integers(0, 400), max_size=6), st.booleans())
def test_a_stream_has_our_name_and_its_texts_unchanged_wherever_it_is_cut(
    text: str, cuts: list[int], end: bool
) -> None:
    chunks = [{"model": SERVED, "choices": [{"delta": {"content": text, "model_": SERVED}}]}, {"model": "other"}]
    stream = b"".join(b"data: " + json.dumps(chunk).encode() + b"\n\n" for chunk in chunks)
    stream = stream if end else stream.rstrip()
    rename = ModelName(SERVED, "kimi")
    edges = [0, *sorted(min(cut, len(stream)) for cut in cuts), len(stream)]
    out = b"".join(rename.feed(stream[a:b]) for a, b in pairwise(edges)) + rename.finish()
    got = [json.loads(line[6:]) for line in out.splitlines() if line]
    assert got == [{**chunks[0], "model": "kimi"}, chunks[1]]


@given(names, names)
def test_any_name_can_stand_for_any_other(served: str, ours: str) -> None:
    body = json.dumps({"model": served, "text": served}).encode()
    assert json.loads(ModelName(served, ours).whole(body)) == {"model": ours, "text": served}


def test_a_line_without_end_is_not_kept() -> None:
    name = ModelName(SERVED, "kimi")
    sent = sum(len(name.feed(b"x" * 100_000)) for _ in range(100))
    assert sent > 9_000_000
    assert sent + len(name.finish()) == 10_000_000
