"""A frame read by its bytes gives what parsing its JSON gives, for any stream."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.http1.sse import decode_chunk, encode_frame, frame_data
from serve.stream.frame import FrameTemplate, ReadFrame, TemplateLearner, TextDelta, TextPlace, lone_delta

TEXTS = st.text(max_size=5) | st.sampled_from(
    [",", '","', '":{"', "stop", "m", "\\", '"', "é", "😀", "\x00?", "}", ":"]
)


def chunk(delta: dict[str, Any], choice: int = 0, **more: Any) -> dict[str, Any]:
    said = {"index": choice, "delta": delta, "logprobs": None, "finish_reason": None}
    return {"id": "m", "model": "m", "choices": [said], **more}


def arguments(text: str, call: int = 0) -> dict[str, Any]:
    return {"tool_calls": [{"index": call, "function": {"arguments": text}}]}


DELTAS = (
    st.builds(lambda name, text: {name: text}, st.sampled_from(["content", "reasoning", "role"]), TEXTS)
    | st.builds(arguments, TEXTS, st.integers(0, 1))
    | st.builds(lambda one, two: {"content": one, "reasoning": two}, TEXTS, TEXTS)
    | st.just({})
)
CHUNKS = st.builds(
    chunk, DELTAS, st.sampled_from([0, 0, 0, 1]), usage=st.sampled_from([None, None, {"total_tokens": 1}])
)
# Runs of one kind, as engines send them, so that there is something to learn.
STREAMS = st.lists(CHUNKS | st.lists(TEXTS.map(lambda text: chunk({"content": text})), max_size=8), max_size=12).map(
    lambda runs: [made for run in runs for made in (run if isinstance(run, list) else [run])]
)


def spelt(made: dict[str, Any], ascii_only: bool) -> bytes:
    """A frame by another engine: with spaces, perhaps with every character but ASCII's as an escape."""
    return b"data: " + json.dumps(made, ensure_ascii=ascii_only).encode() + b"\n\n"


def match(learner: TemplateLearner, frame: bytes) -> TextDelta | None:
    template = learner.template
    text = template.match(frame) if template is not None else None
    return TextDelta(template.place, text) if template is not None and text is not None else None


def read(frame: bytes) -> TextDelta | None:
    data = frame_data(frame)
    assert data is not None
    return lone_delta(decode_chunk(data))


@given(STREAMS, st.sampled_from([encode_frame, lambda made: spelt(made, True), lambda made: spelt(made, False)]))
def test_a_match_is_what_parsing_gives(stream: list[dict[str, Any]], frame: Any) -> None:
    learner = TemplateLearner()
    for made in stream:
        sent = frame(made)
        matched = match(learner, sent)
        assert matched in (None, read(sent))
        if matched is None:
            learner.learn(sent, made)
        else:
            assert learner.template is not None
            rendered = learner.template.render('other "text" 😀')
            assert read(rendered) == matched._replace(text='other "text" 😀')


@pytest.mark.parametrize("delta", [lambda text: {"content": text}, arguments])
def test_after_two_of_a_kind_frames_match(delta: Any) -> None:
    learner = TemplateLearner()
    for text in ("one", "two"):
        made = chunk(delta(text))
        assert match(learner, encode_frame(made)) is None
        learner.learn(encode_frame(made), made)
    for text in ("three", "a\n", "é", '{"a":"'):
        sent = encode_frame(chunk(delta(text)))
        assert match(learner, sent) == read(sent)
    assert match(learner, encode_frame(chunk(delta("")))) is None
    assert match(learner, encode_frame(chunk(delta("x"), choice=1))) is None


@pytest.mark.parametrize("broken", [b'"', b'","logprobs":1,"x":"', b"\xff", b"\n", b"\\", b"\\ud83d"])
def test_a_frame_with_no_string_in_the_texts_place_does_not_match(broken: bytes) -> None:
    learner = TemplateLearner()
    for text in ("one", "two"):
        made = chunk({"content": text})
        learner.learn(encode_frame(made), made)
    sent = encode_frame(made).replace(b"two", broken)
    assert match(learner, sent) is None


def test_frames_that_also_differ_elsewhere_make_no_template_and_after_some_of_them_none_is_looked_for() -> None:
    learner = TemplateLearner()
    for number in range(40):
        made = chunk({"content": "x"}, created=number)
        learner.learn(encode_frame(made), made)
        assert learner.template is None
    for text in ("one", "two"):
        made = chunk({"content": text})
        learner.learn(encode_frame(made), made)
    assert learner.template is None


@pytest.mark.parametrize("text", ["m", "id", ":", '","', "\x00?"])
def test_a_text_that_also_occurs_elsewhere_in_the_frame_makes_no_wrong_template(text: str) -> None:
    parsed = ReadFrame(encode_frame(chunk({"content": text})), TextDelta(TextPlace(0, "content", -1), text))
    template = FrameTemplate.learn(parsed, parsed)
    other = encode_frame(chunk({"content": "other"}))
    assert template is None or template.render("other") == other


def test_two_frames_are_no_match_even_if_they_begin_and_end_like_one() -> None:
    """Whoever has a match need not look for the end of the frame."""
    learner = TemplateLearner()
    first, second = ({"choices": [{"index": 0, "delta": {"content": text}}]} for text in ("a", "b"))
    for chunk in (first, second):
        learner.learn(encode_frame(chunk), chunk)
    assert learner.template is not None
    assert learner.template.match(encode_frame(first)) == "a"
    assert learner.template.match(encode_frame(first) + encode_frame(second)) is None
    assert learner.template.match(learner.template.prefix + b'a" \n\n' + learner.template.suffix) is None
