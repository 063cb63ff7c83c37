"""A chat request as a text completion that goes on with its answer."""

import json
from typing import Any

import pytest

from serve.request.completion import parse
from serve.request.continuation import CannotResumeError, continuation, obstacle, tokenizing
from serve.request.features import features_of

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


TOOL = {"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}
STRICT = {"type": "function", "function": {**TOOL["function"], "strict": True}}
SCHEMA = {"type": "json_schema", "json_schema": {"name": "n", "schema": {"type": "object"}}}
REASONS: dict[str | None, list[dict[str, Any]]] = {
    "grammar": [
        {"response_format": {"type": "json_object"}},
        {"response_format": SCHEMA},
        {"tools": [TOOL, STRICT]},
        {"tools": [TOOL], "tool_choice": "required"},
        {"tools": [TOOL], "tool_choice": {"type": "function", "function": {"name": "f"}}},
        {"structured_outputs": {"regex": "a+"}},
    ],
    "several": [{"n": 2}],
    "logprobs": [{"logprobs": True}],
    "reasoning": [{"include_reasoning": False}],
    "sampling": [{"presence_penalty": 1}],
    None: [{"tools": [TOOL]}, {"response_format": {"type": "text"}}, {"n": 1, "logprobs": False}],
}


@pytest.mark.parametrize(("reason", "more"), [(reason, each) for reason, cases in REASONS.items() for each in cases])
def test_what_a_prefix_does_not_hold_can_only_be_rerun(reason: str | None, more: dict[str, Any]) -> None:
    features = features_of(parse(json.dumps({**CHAT, **more}).encode()), {})
    assert obstacle(features) == reason


def ids_of(**body: Any) -> Any:
    asked = tokenizing(json.dumps(body).encode())
    return json.loads(asked) if isinstance(asked, bytes) else asked


def test_a_prompt_is_made_of_the_members_of_which_the_chat_route_makes_it() -> None:
    messages = [{"role": "user", "content": "Hi"}]
    assert ids_of(messages=messages, temperature=1, tools=None) == {"messages": messages}
    told = ids_of(messages=messages, reasoning_effort="none", chat_template_kwargs={"x": 1}, tools=[{"a": 1}])
    arguments = {"reasoning_effort": "none", "enable_thinking": False, "x": 1}
    assert told == {"messages": messages, "tools": [{"a": 1}], "chat_template_kwargs": arguments}


def test_a_prompt_that_is_text_or_ids_stays_so() -> None:
    assert ids_of(prompt="Hi") == {"prompt": "Hi", "add_special_tokens": True}
    assert ids_of(prompt="Hi", add_special_tokens=False)["add_special_tokens"] is False
    assert ids_of(prompt=[1, 2]) == [1, 2]


@pytest.mark.parametrize("prompt", [["a", "b"], [[1], [2]], None, {"a": 1}])
def test_several_prompts_are_not_gone_on_with(prompt: Any) -> None:
    with pytest.raises(CannotResumeError, match="several"):
        ids_of(prompt=prompt)


@pytest.mark.parametrize("more", [{"echo": True}, {"suffix": "x"}, {"best_of": 2}, {"prompt_embeds": "x"}])
def test_what_a_rest_would_not_be_is_not_asked_for(more: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", "prompt": "Hi", **more}).encode()
    with pytest.raises(CannotResumeError, match="fields"):
        continuation(body, [1], [2], "x", exact=False, raw=False)


def test_the_rest_of_a_text_is_what_the_client_asked_for() -> None:
    body = {
        "model": "m",
        "prompt": "Hi",
        "seed": 1,
        "presence_penalty": 1,
        "skip_special_tokens": False,
        "max_tokens": 9,
    }
    rest = json.loads(continuation(json.dumps(body).encode(), [1], [2, 3], "x", exact=False, raw=False))
    assert rest == {**body, "prompt": [1, 2, 3], "max_tokens": 7, "add_special_tokens": False}
