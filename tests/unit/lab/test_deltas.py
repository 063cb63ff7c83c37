"""Folding OpenAI deltas into a message."""

from lab.deltas import fold_deltas


def entry(index: int, **function: str) -> dict[str, object]:
    return {"index": index, "function": function}


def test_texts_are_joined_field_by_field() -> None:
    deltas = [{"role": "assistant", "content": ""}, {"reasoning": "be"}, {"reasoning": "cause"}, {"content": "so"}]
    assert fold_deltas(deltas) == {"reasoning": "because", "content": "so"}


def test_calls_are_joined_by_index_however_they_interleave() -> None:
    deltas = [
        {"tool_calls": [{**entry(1, name="b", arguments=""), "id": "y", "type": "function"}]},
        {"tool_calls": [{**entry(0, name="a", arguments="{"), "id": "x", "type": "function"}]},
        {"tool_calls": [entry(1, arguments="[]"), entry(0, arguments="}")]},
    ]
    assert fold_deltas(deltas)["tool_calls"] == [
        {"id": "x", "type": "function", "function": {"name": "a", "arguments": "{}"}},
        {"id": "y", "type": "function", "function": {"name": "b", "arguments": "[]"}},
    ]


def test_fields_that_engines_send_as_null_count_for_nothing() -> None:
    assert fold_deltas([{"content": None, "tool_calls": None}, {}]) == {}
