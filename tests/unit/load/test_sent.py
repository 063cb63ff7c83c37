"""The engine's report on speculation, wherever the last bytes of a response are cut."""

import json
from itertools import pairwise
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.load.sent import SpecReport, spec_report

REPORT = {
    "mean_acceptance_length": 2.5, "draft_acceptance_rate": 0.5, "acceptance_histogram": [1, 2, 3, 4],
    "num_spec_steps": 40, "num_accepted_draft_tokens": 60, "num_draft_tokens": 120, "num_spec_tokens": 3,
}  # fmt: skip


def frame(**members: Any) -> bytes:
    return b"data: " + json.dumps({"choices": [], "usage": {"total_tokens": 9}, **members}).encode() + b"\n\n"


@given(cuts=st.lists(st.integers(0, 600), max_size=3))
def test_it_is_found_however_a_stream_is_cut(cuts: list[int]) -> None:
    data = frame(metrics={"speculative_decoding": REPORT}) + b"data: [DONE]\n\n"
    places = [0, *sorted(min(cut, len(data)) for cut in cuts), len(data)]
    parts = [data[start:end] for start, end in pairwise(places)]
    assert spec_report(parts) == SpecReport(40, 60)


def test_it_is_found_in_a_whole_response_with_space_between_its_members() -> None:
    body = json.dumps({"choices": [{}], "metrics": {"speculative_decoding": REPORT}, "x": 1}, indent=1).encode()
    assert spec_report([body]) == SpecReport(40, 60)


def test_a_model_that_writes_such_a_member_is_not_believed() -> None:
    text = json.dumps({"speculative_decoding": {**REPORT, "num_accepted_draft_tokens": 0}})
    assert spec_report([json.dumps({"choices": [{"message": {"content": text}}]}).encode()]) is None


@pytest.mark.parametrize(
    "report",
    [
        {}, [], None, "x", {**REPORT, "num_spec_steps": 0}, {**REPORT, "num_accepted_draft_tokens": -1},
        {**REPORT, "num_accepted_draft_tokens": 121}, {**REPORT, "num_draft_tokens": "many"},
        {**REPORT, "num_spec_steps": True}, {**REPORT, "num_spec_steps": -40}, {**REPORT, "num_spec_steps": 40.0},
        {**REPORT, "num_spec_steps": None}, {**REPORT, "num_spec_steps": float("nan")},
        {**REPORT, "num_spec_steps": 10**400}, {**REPORT, "num_draft_tokens": float("inf")},
        {**REPORT, "num_accepted_draft_tokens": 10**400, "num_draft_tokens": 10**400},
    ],
)  # fmt: skip
def test_what_makes_no_sense_is_no_report(report: Any) -> None:
    assert spec_report([frame(metrics={"speculative_decoding": report})]) is None


@given(st.lists(st.binary(max_size=40), max_size=4))
def test_no_bytes_are_an_error(parts: list[bytes]) -> None:
    assert spec_report(parts) is None
    spec_report([b'{"speculative_decoding":', *parts])


def test_an_engine_that_nests_without_end_reports_nothing() -> None:
    assert spec_report([b'{"speculative_decoding":' + b"[" * 100_000]) is None
    assert spec_report([b'{"speculative_decoding":' + b'{"a":' * 100_000]) is None
