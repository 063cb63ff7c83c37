"""`count_tokens` to vLLM's `/tokenize` and back."""

import json
from typing import Any

import pytest
from hypothesis import given
from hypothesis.strategies import booleans, integers

from serve.dialects.dialect import Identity
from serve.dialects.messages import COUNT_TOKENS
from serve.dialects.messages.request import MessagesMemo
from serve.errors import EngineError

TOOL = {"name": "f", "input_schema": {"type": "object"}}


def test_the_engine_gets_what_is_part_of_the_prompt_and_nothing_else() -> None:
    asked = {"model": "m", "system": "s", "messages": [{"role": "user", "content": "x"}], "tools": [TOOL]}
    body = json.dumps({**asked, "tool_choice": {"type": "any"}, "temperature": 1}).encode()
    chat = json.loads(COUNT_TOKENS.decode(body).body)
    assert set(chat) == {"model", "messages", "tools"}
    assert [message["role"] for message in chat["messages"]] == ["system", "user"]


def test_the_engines_count_is_the_answer() -> None:
    assert json.loads(COUNT_TOKENS.encode_whole({"count": 7, "tokens": []}, MessagesMemo(10), Identity("r", "m"))) == {
        "input_tokens": 7
    }


@pytest.mark.parametrize("answer", [{}, {"count": "7"}, {"count": 0}])
def test_an_answer_without_a_count_is_none(answer: dict[str, object]) -> None:
    with pytest.raises(EngineError):
        COUNT_TOKENS.encode_whole(answer, MessagesMemo(10), Identity("r", "m"))


@given(integers(0, 5000))
def test_the_estimate_is_four_bytes_a_token(length: int) -> None:
    assert 0 <= estimate([{"type": "text", "text": "x" * length}]) - length // 4 < 20


@given(integers(1, 100_000), integers(1, 100_000), booleans())
def test_the_size_of_a_pictures_file_does_not_count(one: int, other: int, is_result: bool) -> None:
    """Else a client that compacts by the count does so at every screenshot."""

    def picture(size: int) -> dict[str, Any]:
        shown = {"type": "image", "source": {"type": "base64", "media_type": "image/png", "data": "A" * size}}
        return {"type": "tool_result", "tool_use_id": "t", "content": [shown]} if is_result else shown

    assert estimate([picture(one)]) == estimate([picture(other)]) in range(1000, 1100)


def estimate(content: list[dict[str, Any]]) -> int:
    body = {"model": "m", "messages": [{"role": "user", "content": content}]}
    assert COUNT_TOKENS.estimate is not None
    return int(json.loads(COUNT_TOKENS.estimate(COUNT_TOKENS.decode(json.dumps(body).encode()).memo))["input_tokens"])
