"""What is no answer is not read as an empty one."""

from typing import Any

import pytest

from serve.dialects.answer import Answer
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
