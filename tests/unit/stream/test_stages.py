"""What is renamed in an answer, and what is taken out of it, whichever way an engine writes and the network cuts it."""

import json
from collections.abc import Sequence
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import encode_frame
from serve.stream.ending import End
from serve.stream.frame import Frame
from serve.stream.line import Line, Stage
from serve.stream.stages import Rename, TokenIds, Without

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


USAGE = {"prompt_tokens": 12, "completion_tokens": 7, "prompt_tokens_details": {"cached_tokens": 5}}
TELLS = {"id": "c", "choices": [], "usage": USAGE}
TEXT = {"id": "c", "choices": [{"index": 0, "delta": {"content": 'a "choices":[] "usage":{"prompt_tokens":9}'}}]}
WORD = {"id": "c", "choices": [{"index": 0, "delta": {"content": "a"}}]}
STOP = {"id": "c", "choices": [{"index": 0, "delta": {}, "finish_reason": "stop"}]}


def stream(*payloads: object, end: str = "\n\n", compact: bool = True) -> bytes:
    separators = (",", ":") if compact else (", ", ": ")
    frames = [json.dumps(each, separators=separators) for each in payloads]
    return "".join(f"data: {each}{end}" for each in (*frames, "[DONE]")).encode()


def left(data: bytes, *cuts: int) -> bytes:
    """What a plain stream's client gets, fed as it is from the event loop."""
    places = sorted({0, *(cut % (len(data) + 1) for cut in cuts), len(data)})
    line, out = Line([Without(usage=True), End()]), list[bytes]()
    take = line.sink(out.append, lambda part: out.append(line.feed(part)))
    for start, end in pairwise(places):
        take(data[start:end])
    return b"".join(out) + line.finish()


@given(st.lists(st.integers(0, 400), max_size=6), st.sampled_from(["\n\n", "\r\n\r\n", "\r\r"]), st.booleans())
def test_the_frame_with_the_usage_is_taken_out_however_it_is_written_and_cut(
    cuts: list[int], end: str, compact: bool
) -> None:
    told = stream(TEXT, WORD, WORD, STOP, TELLS, end=end, compact=compact)
    assert left(told, *cuts) == stream(TEXT, WORD, WORD, STOP, end=end, compact=compact)


@pytest.mark.parametrize("usage", [{}, {"prompt_tokens": -5}, {"prompt_tokens": "many"}, {"total_tokens": 1e99}])
def test_numbers_that_can_not_be_true_are_taken_out_as_well(usage: dict[str, object]) -> None:
    assert left(stream(WORD, STOP, {**TELLS, "usage": usage})) == stream(WORD, STOP)


@pytest.mark.parametrize(
    "other",
    [
        {"choices": [], "prompt_filter_results": []},  # Azure's first frame
        {"choices": [], "usage": None},
        {**STOP, "usage": USAGE},  # an end with usage is an end
        {"choices": [{"index": 0, "delta": {"content": "a"}, "logprobs": {"choices": []}}], "usage": USAGE},
    ],
)
def test_a_frame_that_holds_more_or_no_usage_stays(other: dict[str, object]) -> None:
    assert left(stream(WORD, other, STOP)) == stream(WORD, other, STOP)


def test_words_pass_at_once_without_being_looked_at() -> None:
    word = stream(WORD).removesuffix(b"data: [DONE]\n\n")
    line, out = Line([Without(usage=True), End()]), list[bytes]()
    for _ in range(3):  # two of a kind tell how they differ
        line.feed(word)
    line.sink(out.append, lambda _: pytest.fail("it was read"))(word)
    assert out == [word]


REPORT = {"num_spec_steps": 4, "acceptance_histogram": [1, 2], "deep": {"speculative_decoding": {"x": [{}]}}}
STAGE = Without(drafts=True)


@pytest.mark.parametrize("name", ["speculative_decoding", "spec_tokens_details"])
@pytest.mark.parametrize("indent", [None, 1])
@pytest.mark.parametrize("report", [REPORT, [REPORT, REPORT]])
def test_the_report_becomes_null_and_nothing_else_changes(name, indent, report):
    answer = {"choices": [{"text": "é"}], "metrics": {"time_to_first_token_ms": 1.5, name: report}, "usage": {"n": 2}}
    expected = {**answer, "metrics": {**answer["metrics"], name: None}}
    assert json.loads(STAGE.whole(json.dumps(answer, indent=indent).encode())) == expected


def test_in_a_stream_the_frame_that_has_it_loses_it_and_the_others_stay_the_same_objects():
    other = Frame(b'data: {"choices":[]}\n\n')
    assert STAGE.feed(other) == (other,)
    (left,) = STAGE.feed(Frame(b'data: {"metrics":{"speculative_decoding":{"a":1}},"x":2}\n\n'))
    assert left.raw == b'data: {"metrics":{"speculative_decoding":null},"x":2}\n\n'


def test_a_text_that_talks_of_it_stays_and_what_is_cut_off_goes():
    said = json.dumps(
        {"choices": [{"text": '"speculative_decoding": {"a": 1}'}], "speculative_decoding": None}
    ).encode()
    assert STAGE.whole(said) is said or STAGE.whole(said) == said
    assert STAGE.whole(b'{"speculative_decoding":{"a":1') == b'{"speculative_decoding":null'
    assert STAGE.whole(b'{"speculative_decoding":' + b"[" * 100_000) == b'{"speculative_decoding":null'


@given(
    st.recursive(
        st.none() | st.integers() | st.text(), lambda inner: st.lists(inner) | st.dictionaries(st.text(), inner)
    )
)
def test_an_answer_without_it_passes_as_it_is(value):
    body = json.dumps({"v": value}).encode()
    assert json.loads(STAGE.whole(body)) == {"v": value}
