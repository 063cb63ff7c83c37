"""What an engine tells of its drafts, taken out of the bytes of its answer."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.stream.frame import Frame
from serve.stream.stages import WithoutDrafts

REPORT = {"num_spec_steps": 4, "acceptance_histogram": [1, 2], "deep": {"speculative_decoding": {"x": [{}]}}}
STAGE = WithoutDrafts()


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
