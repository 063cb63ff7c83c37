"""A chat request as a text completion that goes on with its answer."""

import json
from typing import Any

import pytest

from serve.request.resuming import CannotResumeError, continuation

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hi"}], "tools": []}


def going_on(kept: int = 3, text: str = "abc", **more: Any) -> dict[str, Any]:
    body: dict[str, Any] = json.loads(continuation(json.dumps({**CHAT, **more}).encode(), [1, 2], [7] * kept, text))
    return body


def test_the_prompt_is_that_of_the_chat_with_what_is_kept_behind_it() -> None:
    body = going_on()
    assert body["prompt"] == [1, 2, 7, 7, 7]
    assert body["model"] == "m"
    assert not {"messages", "tools"} & body.keys()
    # A text completion without a limit would end after 16 tokens.
    assert body["max_tokens"] is None
    assert body["skip_special_tokens"] is body["add_special_tokens"] is False


def test_what_was_kept_counts_towards_the_limits() -> None:
    assert going_on(max_tokens=10, min_tokens=5)["max_tokens"] == 7
    assert going_on(max_completion_tokens=10, max_tokens=90)["max_tokens"] == 7
    assert going_on(min_tokens=5)["min_tokens"] == 2
    assert "min_tokens" not in going_on(min_tokens=2)


def test_sampling_goes_on_as_it_was_asked_for() -> None:
    asked = {"temperature": 0.5, "top_p": 0.9, "top_k": 5, "stop": ["x"], "logit_bias": {"5": 1}}
    assert going_on(**asked).items() >= asked.items()


def test_a_stream_goes_on_as_one_and_tells_its_usage() -> None:
    assert going_on(stream=True)["stream_options"] == {"include_usage": True}
    assert "stream" not in going_on(stream=False)


@pytest.mark.parametrize(
    ("more", "reason"),
    [
        ({"max_tokens": 3}, "length"),
        ({"stop": ["cd"]}, "stop"),
        ({"stop": "bcd"}, "stop"),
        ({"stop": 5}, "stop"),
        ({"seed": 1, "temperature": 0.1}, "sampling"),
        ({"allowed_token_ids": [1]}, "fields"),
        ({"max_tokens": "many"}, "fields"),
        ({"some_new_field": True}, "fields"),
    ],
)
def test_what_could_not_go_on_as_it_began_is_refused(more: dict[str, Any], reason: str) -> None:
    with pytest.raises(CannotResumeError, match=reason):
        going_on(**more)


@pytest.mark.parametrize("more", [{"seed": 1, "temperature": 0}, {"stop": ["x", "bc"]}, {"bad_words": None}])
def test_what_makes_no_difference_is_no_obstacle(more: dict[str, Any]) -> None:
    assert going_on(**more)
