"""Reasoning of earlier turns under the name that an engine reads."""

import json

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.request.reasoning_field import ReasoningField, with_reasoning_as

NAMES: tuple[ReasoningField, ...] = ("reasoning", "reasoning_content")


@pytest.mark.parametrize("name", NAMES)
@pytest.mark.parametrize("sent", NAMES)
def test_reasoning_has_the_name_that_the_engine_reads(name: ReasoningField, sent: str) -> None:
    body = {"model": "m", "messages": [{"role": "user", "content": "a"}, {"role": "assistant", sent: "hm"}]}
    [question, answer] = json.loads(with_reasoning_as(json.dumps(body).encode(), name))["messages"]
    assert question == {"role": "user", "content": "a"}
    assert answer == {"role": "assistant", name: "hm"}


def test_a_message_with_both_keeps_both() -> None:
    message = {"role": "assistant", "reasoning": "one", "reasoning_content": "two"}
    body = json.dumps({"messages": [message]}).encode()
    assert json.loads(with_reasoning_as(body, "reasoning"))["messages"] == [message]


@pytest.mark.parametrize(
    "body", [b'{"prompt":"\\"reasoning\\""}', b'{"messages":"reasoning"}', b'{"messages":[1,"reasoning"]}']
)
def test_what_holds_no_messages_is_left_alone(body: bytes) -> None:
    assert with_reasoning_as(body, "reasoning_content") == body


@given(st.dictionaries(st.text(), st.integers()), st.floats(allow_nan=False, allow_infinity=False))
def test_every_other_value_stays_as_it_was_sent(members: dict[str, int], number: float) -> None:
    message = {"role": "assistant", "reasoning": "hm", "tool_calls": [members]}
    body = {"temperature": number, "messages": [message], "reasoning": members}
    given = json.loads(with_reasoning_as(json.dumps(body).encode(), "reasoning_content"))
    message["reasoning_content"] = message.pop("reasoning")
    assert given == body
