"""What is no answer is not read as an empty one, and servers of other habits lose nothing."""

from typing import Any

import pytest

from serve.dialects.answer import TEXT, Answer, Call
from serve.errors import EngineError


@pytest.mark.parametrize(
    "completion",
    [{}, {"choices": []}, {"choices": None}, {"choices": ["hello"]}, {"choices": [{"finish_reason": "stop"}]}],
)
def test_a_completion_without_a_message_is_the_engines_fault(completion: dict[str, Any]) -> None:
    with pytest.raises(EngineError, match="no message"):
        Answer().feed_whole(completion)


def test_an_answer_has_ended_once_its_finish_reason_is_known() -> None:
    answer = Answer()
    answer.feed({"choices": [{"delta": {"content": "half"}}]})
    with pytest.raises(EngineError, match="before the answer was complete"):
        answer.check_ended()
    answer.feed({"choices": [{"delta": {}, "finish_reason": "length"}]})
    answer.check_ended()


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {"choices": [{"index": 0, "delta": delta, "finish_reason": finish}]}


@pytest.mark.parametrize("reason", ["abort", "error"])
def test_an_answer_that_its_engine_gave_up_is_none(reason: str) -> None:
    answer = Answer()
    answer.feed(chunk({"content": "half"}, reason))
    with pytest.raises(EngineError, match="before the answer was complete"):
        answer.check_ended()
    completion = {"choices": [{"message": {"content": "half"}, "finish_reason": reason}]}
    with pytest.raises(EngineError, match=f"gave the answer up .{reason}"):
        Answer().feed_whole(completion)


def test_of_a_finish_reason_without_end_an_error_says_the_beginning() -> None:
    with pytest.raises(EngineError) as caught:
        Answer().feed_whole({"choices": [{"message": {"content": "half"}, "finish_reason": "x" * 100_000}]})
    assert len(caught.value.message) < 1000


def called(index: int | None, identity: str | None, name: str | None, arguments: Any) -> dict[str, Any]:
    return {"tool_calls": [{"index": index, "id": identity, "function": {"name": name, "arguments": arguments}}]}


@pytest.mark.parametrize("index", [0, None])
def test_calls_that_all_have_one_index_or_none_are_told_apart_by_their_ids(index: int | None) -> None:
    answer = Answer()
    for identity in ("a", "b"):
        answer.feed(chunk(called(index, identity, "f", '{"of": ')))
        answer.feed(chunk(called(index, None, None, f'"{identity}"}}')))
    assert answer.calls() == [Call("a", "f", '{"of": "a"}'), Call("b", "f", '{"of": "b"}')]


def test_a_call_whose_id_changes_on_its_way_is_one_call() -> None:
    answer = Answer()
    answer.feed(chunk(called(0, "a", "f", "{")))
    answer.feed(chunk(called(0, "b", None, "}")))
    assert answer.calls() == [Call("a", "f", "{}")]


def test_a_call_without_an_id_or_with_that_of_another_in_the_conversation_has_one_of_its_own() -> None:
    answer = Answer({"before"}, "r1")
    for index, identity in enumerate(["a", "a", None, "", "before"]):
        answer.feed(chunk(called(index, identity, "f", "{}")))
    assert [call.id for call in answer.calls()] == ["a", "call_r1_1", "call_r1_2", "call_r1_3", "call_r1_4"]


def test_a_call_without_an_id_has_one_of_its_own_although_the_client_names_all_requests_alike() -> None:
    answer = Answer(["call_r1_0"], "r1")
    answer.feed(chunk({"tool_calls": [{"index": 0, "function": {"name": "f", "arguments": "{}"}}]}))
    assert [call.id for call in answer.calls()] == ["call_r1_1"]


@pytest.mark.parametrize(("arguments", "read"), [({"city": "Köln"}, '{"city":"Köln"}'), ({}, "{}"), (None, "{}")])
def test_arguments_that_are_an_object_are_those_of_the_call(arguments: Any, read: str) -> None:
    answer = Answer()
    answer.feed(chunk(called(0, "a", "f", arguments)))
    assert answer.calls() == [Call("a", "f", read)]


@pytest.mark.parametrize("arguments", [["city"], 7, True])
def test_arguments_of_any_other_kind_cannot_be_read(arguments: Any) -> None:
    answer = Answer()
    answer.feed(chunk(called(0, "a", "f", arguments)))
    with pytest.raises(EngineError, match="can't be read"):
        answer.calls()


def test_content_in_parts_is_its_texts() -> None:
    parts = [{"type": "text", "text": "Hel"}, {"type": "image"}, "x", {"type": "text", "text": "lo"}]
    assert Answer().feed(chunk({"content": parts})) == [(TEXT, "Hello")]


@pytest.mark.parametrize(
    ("given", "read"),
    [
        ({}, (100, 10)),
        ({"prompt_tokens": 0, "completion_tokens": 0}, (100, 10)),
        ({"prompt_tokens": 7.0, "completion_tokens": 3.0}, (7, 3)),
        ({"prompt_tokens": 7, "completion_tokens": None}, (7, 10)),
        ({"prompt_tokens": "7", "completion_tokens": float("nan")}, (100, 10)),
    ],
)
def test_usage_is_never_nothing(given: dict[str, Any], read: tuple[int, int]) -> None:
    answer = Answer()
    answer.feed({**chunk({"content": "x" * 40}, "stop"), "usage": given})
    assert answer.usage(100)[:2] == read


def test_an_answer_of_nothing_cost_what_its_engine_says() -> None:
    answer = Answer()
    answer.feed({**chunk({}, "stop"), "usage": {"prompt_tokens": 7, "completion_tokens": 0}})
    assert answer.usage(100)[:2] == (7, 0)
