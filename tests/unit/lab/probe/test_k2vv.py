"""Request sets of K2-Vendor-Verifier, and its metrics."""

import json
from collections import Counter

import pytest
from hypothesis import given
from hypothesis import strategies as st

from lab.probe.k2vv import RequestSet, calls_are_valid, metrics, read_reference, read_requests
from serve.errors import ConfigError

ASK = {"messages": [{"role": "user", "content": "hi"}]}
TOOL = {
    "type": "function",
    "function": {
        "name": "search",
        "parameters": {"type": "object", "properties": {"q": {"type": "string"}}, "required": ["q"]},
    },
}


def said(name, arguments):
    return {"tool_calls": [{"id": "a", "type": "function", "function": {"name": name, "arguments": arguments}}]}


def file_of(folder, *lines):
    path = folder / "set.jsonl"
    path.write_text("\n".join(line if isinstance(line, str) else json.dumps(line) for line in lines) + "\n")
    return path


def test_requests_are_known_by_their_line_and_input_messages_are_system_messages(tmp_path):
    path = file_of(tmp_path, ASK, "", {"messages": [{"role": "_input", "content": "\u2028"}], "top_k": 3})
    requests = read_requests(path)
    assert list(requests) == [1, 3]
    assert requests[3] == {"messages": [{"role": "system", "content": "\u2028"}], "top_k": 3}


@pytest.mark.parametrize(
    "line",
    [
        "{",
        "[]",
        '{"prompt": "x"}',
        '{"messages": ["x"]}',
        '{"messages": [], "tools": "search"}',
        '{"messages": [], "tools": {"search": {}}}',
        '{"messages": [], "tools": ["search"]}',
        '{"messages": [], "tools": [{"type": "function"}]}',
        '{"messages": [], "temperature": NaN}',
        '{"messages": [], "temperature": 1e999}',
        '{"messages": [{"role": "user", "content": "\\ud800"}]}',
        '{"messages": [{"role": "user", "content": "caf\u00e9',
        '{"messages": ' + "[" * 100_000,
    ],
)
def test_a_line_that_is_no_request_is_named(tmp_path, line):
    with pytest.raises(ConfigError, match="line 2"):
        read_requests(file_of(tmp_path, ASK, line))


def test_a_line_that_is_not_text_is_named(tmp_path):
    (tmp_path / "s.jsonl").write_bytes(b'{"messages": []}\n\xea\x00\n')
    with pytest.raises(ConfigError, match="line 2"):
        read_requests(tmp_path / "s.jsonl")


@pytest.mark.parametrize(("start", "end"), [(b"\xef\xbb\xbf", b"\n"), (b"", b"\r\n"), (b"", b"")])
def test_byte_order_marks_and_either_line_ending_are_read(tmp_path, start, end):
    line = b'{"messages": [], "tools": null}'
    (tmp_path / "s.jsonl").write_bytes(start + line + end + line + end if end else start + line)
    assert set(map(repr, read_requests(tmp_path / "s.jsonl").values())) == {"{'messages': [], 'tools': None}"}


def test_an_empty_file_is_wrong_input(tmp_path):
    with pytest.raises(ConfigError, match="no requests"):
        read_requests(file_of(tmp_path, ""))


def test_a_set_is_sent_streamed_or_whole_whatever_its_requests_say():
    recorded = {7: {**ASK, "stream": True, "stream_options": {"include_usage": False}, "temperature": 0.6}}
    streamed, whole = RequestSet("set.jsonl", recorded, True).body(0), RequestSet("set.jsonl", recorded, False).body(0)
    assert (streamed["stream"], streamed["stream_options"]) == (True, {"include_usage": True})
    assert (whole["stream"], "stream_options" in whole, whole["temperature"]) == (False, False, 0.6)
    assert "seed" not in whole
    assert (
        RequestSet("set.jsonl", recorded, False).body(1)["seed"]
        != RequestSet("set.jsonl", recorded, False).body(2)["seed"]
    )


@pytest.mark.parametrize(
    ("name", "arguments", "valid"),
    [
        ("search", '{"q": "x"}', True),
        ("search", '{"q": "x", "more": NaN}', True),  # Python's JSON, as in the verifier
        ("search", '{"q": 3}', False),
        ("search", '{"q": "x', False),
        ("search", "", False),
        ("other", '{"q": "x"}', False),
    ],
)
def test_calls_are_valid_as_the_verifier_says(name, arguments, valid):
    assert calls_are_valid({"tools": [TOOL]}, said(name, arguments)) is valid


def test_no_call_no_schema_and_a_schema_that_is_none_are_not_valid():
    free = {"type": "function", "function": {"name": "search", "parameters": {}}}
    odd = {"type": "function", "function": {"name": "search", "parameters": {"type": 3}}}
    assert not calls_are_valid({"tools": [TOOL]}, {"tool_calls": []})
    assert not any(calls_are_valid({"tools": [tool]}, said("search", "{}")) for tool in (free, odd))


def trial(index, reason, valid=None, pool=None, cell="set.jsonl stream=on"):
    return {"cell": cell, "data_index": index, "finish_reason": reason, "tool_calls_valid": valid, "pool": pool}


def test_metrics_are_counted_by_cell_and_pool():
    trials = [
        trial(1, "tool_calls", True, "speculative"),
        trial(2, "tool_calls", False, "speculative"),
        trial(3, "stop", pool="speculative"),
        trial(4, None, pool="speculative"),  # failed
        trial(1, "stop", pool="standard"),
    ]
    counted = metrics(trials, {1: "tool_calls", 2: "stop", 3: "tool_calls", 4: "tool_calls"})
    fast, safe = counted["set.jsonl stream=on", "speculative"], counted["set.jsonl stream=on", "standard"]
    assert (fast["count_finish_reason_tool_calls"], fast["count_successful_tool_call"]) == (2, 1)
    assert (fast["schema_accuracy"], fast["tool_call_f1"], fast["compared"]) == (0.5, 0.5, 3)
    assert (safe["schema_accuracy"], safe["tool_call_f1"]) == (None, 0.0)


@given(st.lists(st.tuples(st.sampled_from(["tool_calls", "stop", "length"]), st.sampled_from(["tool_calls", "stop"]))))
def test_f1_is_the_harmonic_mean_of_precision_and_recall(pairs):
    trials = [trial(index, ours) for index, (ours, _) in enumerate(pairs)]
    rows = metrics(trials, {index: theirs for index, (_, theirs) in enumerate(pairs)} or {0: "stop"})
    for row in rows.values():
        precision, recall = row["tool_call_precision"], row["tool_call_recall"]
        if precision and recall:
            mean = 2 * precision * recall / (precision + recall)
            assert row["tool_call_f1"] == pytest.approx(mean, abs=2e-4)
        else:
            assert not row["tool_call_f1"]
        assert row["count_finish_reason_tool_calls"] == Counter(ours for ours, _ in pairs)["tool_calls"]


def test_a_reference_is_the_verifiers_results_and_its_first_answer_counts(tmp_path):
    results = [
        {"data_index": 1, "finish_reason": None, "status": "failed"},
        {"data_index": 1, "finish_reason": "tool_calls", "status": "success"},
        {"data_index": 1, "finish_reason": "stop", "status": "success"},
        {"settings": {}},
    ]
    assert read_reference(file_of(tmp_path, *results)) == {1: "tool_calls"}
    with pytest.raises(ConfigError, match="no results"):
        read_reference(file_of(tmp_path, {"settings": {}}))
