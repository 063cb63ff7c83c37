"""`count_tokens` to vLLM's `/tokenize` and back."""

import json

import pytest

from serve.dialects.dialect import Identity
from serve.dialects.messages import COUNT_TOKENS
from serve.dialects.messages.request import MessagesMemo
from serve.errors import EngineError

TOOL = {"name": "f", "input_schema": {"type": "object"}}


def test_the_engine_gets_what_is_part_of_the_prompt_and_nothing_else() -> None:
    given = {"model": "m", "system": "s", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    body = json.dumps({**given, "tool_choice": {"type": "any"}, "temperature": 1}).encode()
    chat = json.loads(COUNT_TOKENS.decode(body).body)
    assert set(chat) == {"model", "messages", "tools"}
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]


def test_the_engines_count_is_the_answer() -> None:
    assert json.loads(COUNT_TOKENS.encode_whole({"count": 7, "tokens": []}, MessagesMemo(40), Identity("r", "m"))) == {
        "input_tokens": 7
    }


@pytest.mark.parametrize("answer", [{}, {"count": "7"}, {"count": 0}])
def test_an_answer_without_a_count_is_none(answer: dict[str, object]) -> None:
    with pytest.raises(EngineError):
        COUNT_TOKENS.encode_whole(answer, MessagesMemo(40), Identity("r", "m"))


def test_the_estimate_is_four_bytes_a_token() -> None:
    assert COUNT_TOKENS.estimate is not None
    assert json.loads(COUNT_TOKENS.estimate(MessagesMemo(40))) == {"input_tokens": 10}
