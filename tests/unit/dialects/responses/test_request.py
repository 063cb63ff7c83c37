"""Requests: what reaches the engine, what is left out and said so, and what is refused."""

import json
from contextlib import suppress
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from support.responses_api import WEATHER, chat, translated

from serve.dialects.responses.request import decode
from serve.errors import InvalidRequestError


def test_a_string_is_one_message_of_the_user_after_the_instructions() -> None:
    assert chat("hi", instructions="Be brief.") == {
        "model": "m",
        "messages": [{"role": "system", "content": "Be brief."}, {"role": "user", "content": "hi"}],
    }


def test_a_stream_always_asks_the_engine_for_its_usage() -> None:
    body = chat(stream=True, stream_options={"include_obfuscation": False})
    assert (body["stream"], body["stream_options"]) == (True, {"include_usage": True})


@pytest.mark.parametrize(
    ("given", "expected"),
    [
        ({"max_output_tokens": 7}, {"max_completion_tokens": 7}),
        ({"max_output_tokens": 7, "n_predict": 9, "max_new_tokens": 9}, {"max_completion_tokens": 7}),
        ({"n": 2, "best_of": 2, "n_cmpl": 2, "n_probs": 2}, {}),
        ({"reasoning": {"effort": "low"}}, {"reasoning_effort": "low"}),
        ({"reasoning": None, "temperature": None}, {}),
        ({"text": {"format": {"type": "text"}, "verbosity": "low"}}, {}),
        ({"text": {"format": {"type": "json_object"}}}, {"response_format": {"type": "json_object"}}),
        (
            {"text": {"format": {"type": "json_schema", "name": "n", "schema": {"type": "object"}, "strict": True}}},
            {
                "response_format": {
                    "type": "json_schema",
                    "json_schema": {"name": "n", "schema": {"type": "object"}, "strict": True},
                }
            },
        ),
        (
            {"text": {"format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}}},
            {"response_format": {"type": "json_schema", "json_schema": {"name": "n", "schema": {}}}},
        ),
        ({"temperature": 0.5, "top_p": 0.9, "seed": 1}, {"temperature": 0.5, "top_p": 0.9, "seed": 1}),
        (
            {"prompt_cache_key": "k", "enable_speculative": False},
            {"prompt_cache_key": "k", "enable_speculative": False},
        ),
        ({"kv_transfer_params": {}}, {"kv_transfer_params": {}}),  # for the rules of chat requests to refuse
        ({"store": True, "metadata": {"a": "b"}, "truncation": "auto", "service_tier": "auto"}, {}),
    ],
)
def test_fields_reach_the_engine_under_chats_names(given: dict[str, Any], expected: dict[str, Any]) -> None:
    body = chat(**given)
    assert {name: value for name, value in body.items() if name not in ("model", "messages")} == expected


def test_a_conversation_may_change_the_format_and_the_effort_on_its_way() -> None:
    """OpenAI's item `configuration_update`: each setting holds until the next one replaces it."""
    form = {"type": "json_schema", "name": "n", "schema": {"type": "object"}}
    updates: list[Any] = [
        {"type": "configuration_update", "text": {"format": form}, "reasoning": {"effort": "high"}},
        {"type": "configuration_update", "reasoning": {"effort": "low"}},
    ]
    asked = {"role": "user", "content": "x"}
    request = translated([asked, *updates, asked], reasoning={"effort": "none"})
    body = json.loads(request.body)
    assert (body["reasoning_effort"], body["response_format"]["json_schema"]["name"]) == ("low", "n")
    assert request.dropped == ()
    plain = {"type": "configuration_update", "text": {"format": {"type": "text"}}}
    assert "response_format" not in chat([asked, *updates, plain])


def test_what_has_no_effect_and_might_be_missed_is_named() -> None:
    request = translated(
        [{"role": "user", "content": "x"}, {"type": "web_search_call", "id": "w"}],
        tools=[WEATHER, {"type": "web_search"}],
        include=["reasoning.encrypted_content", "file_search_call.results"],
        moderation={"a": 1},
        client_metadata={"x": "y"},
        text={"verbosity": "low", "format": {"type": "text"}, "later": None},
        reasoning={"effort": "low", "summary": None, "mode": "pro"},
    )
    assert request.dropped == (
        "tools.web_search",
        "input.web_search_call",
        "moderation",
        "text.verbosity",
        "reasoning.mode",
        "include.file_search_call.results",
    )


@pytest.mark.parametrize(
    ("given", "param", "code"),
    [
        ({"previous_response_id": "resp_1"}, "previous_response_id", "previous_response_not_found"),
        ({"conversation": "conv_1"}, "conversation", "unsupported_parameter"),
        ({"prompt": {"id": "p"}}, "prompt", "unsupported_parameter"),
        ({"background": True}, "background", "unsupported_parameter"),
        ({"input": []}, "input", "invalid_request"),
        ({"input": [{"type": "item_reference", "id": "x"}]}, "input[0]", "item_reference_not_found"),
        ({"input": [{"id": "x"}]}, "input[0]", "item_reference_not_found"),
        ({"input": [{"role": "robot", "content": "x"}]}, "input[0].role", "invalid_request"),
        ({"input": [3]}, "input[0]", "invalid_request"),
        ({"input": 3}, "input", "invalid_request"),
        ({"input": [{}] * 40_000}, "input", "over_limit"),
        ({"input": [{"role": "user", "content": [""] * 400}] * 100}, "input", "over_limit"),
        ({"text": {"format": {"type": "xml"}}}, "text.format.type", "invalid_request"),
        ({"text": {"format": "json"}}, "text.format", "invalid_request"),
        ({"reasoning": {"effort": 3}}, "reasoning.effort", "invalid_request"),
        ({"max_output_tokens": "many"}, "max_output_tokens", "invalid_request"),
        ({"model": None}, "model", "missing_field"),
    ],
)
def test_what_cannot_be_answered_is_refused_by_name(given: dict[str, Any], param: str, code: str) -> None:
    with pytest.raises(InvalidRequestError) as refused:
        decode(json.dumps({"model": "m", "input": "x", **given}).encode())
    assert (refused.value.param, refused.value.code) == (param, code)


def test_instructions_alone_are_a_request() -> None:
    """As for vLLM; OpenAI wants an item beside them, or a conversation that it has stored."""
    assert chat(input=[], instructions="Be brief.")["messages"] == [{"role": "system", "content": "Be brief."}]


@pytest.mark.parametrize("body", [b"", b"{", b"[]", b'{"model":"m"}', b'{"input":"x"}'])
def test_a_malformed_body_is_refused(body: bytes) -> None:
    with pytest.raises(InvalidRequestError):
        decode(body)


@pytest.mark.parametrize("depth", [900, 990, 992, 1000, 100_000])
def test_a_body_of_any_depth_is_translated_or_refused(depth: int) -> None:
    output = b"[" * depth + b"]" * depth
    item = b'{"type":"function_call_output","call_id":"c","output":' + output + b"}"
    body = b'{"model":"m","input":[' + item + b'],"metadata":' + output + b"}"
    with suppress(InvalidRequestError):
        assert decode(body).body


def test_half_a_character_in_a_text_is_mended_as_for_chat() -> None:
    body = json.loads(decode(b'\xef\xbb\xbf{"model":"m","input":"a\\ud83d"}').body)
    assert body["messages"][0]["content"] != ""


def test_fields_of_a_conversation_that_openai_stores_may_be_null_or_false() -> None:
    assert chat(previous_response_id=None, conversation=None, background=False, prompt=None)["messages"]


def test_the_answer_repeats_the_request_and_never_claims_to_store_it() -> None:
    echo = translated(store=True, metadata={"a": "b"}, tools=[WEATHER], instructions="x", truncation="auto").memo.echo
    plain = json.loads(json.dumps({name: value for name, value in echo.items() if name in ("store", "truncation")}))
    assert plain == {"store": False, "truncation": "disabled"}
    assert json.loads(bytes(echo["metadata"])) == {"a": "b"}
    assert json.loads(bytes(echo["tools"])) == [WEATHER]


SCALARS = st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=4)
VALUES = st.recursive(SCALARS, lambda inner: st.lists(inner, max_size=3) | st.dictionaries(st.text(max_size=4), inner))
FIELDS = ["tools", "tool_choice", "text", "reasoning", "include", "instructions", "max_output_tokens", "stream", "user"]
KINDS = st.sampled_from(
    ["message", "reasoning", "function_call", "function_call_output", "custom_tool_call", "custom_tool_call_output",
     "local_shell_call", "shell_call_output", "input_text", "output_text", "refusal", "input_image", "input_file",
     "reasoning_text", "summary_text", "function", "custom", "mcp_call",
     "web_search_call", "computer_call", "computer_screenshot", "shell", "apply_patch",
     "namespace", "grammar", "allowed_tools", "json_schema"]
)  # fmt: skip
MEMBERS = st.sampled_from(
    ["role", "content", "summary", "encrypted_content", "call_id", "name", "namespace", "arguments", "input", "output",
     "text", "image_url", "file_data", "tools", "format", "function", "custom", "parameters", "mode", "action"]
)  # fmt: skip
OBJECTS = st.recursive(
    VALUES | st.sampled_from(["user", "assistant", "developer", "data:text/plain;base64,aGk="]),
    lambda inner: (
        st.lists(inner, max_size=3)
        | st.builds(lambda kind, more: {**more, "type": kind}, KINDS, st.dictionaries(MEMBERS, inner, max_size=4))
    ),
    max_leaves=12,
)


@given(st.lists(OBJECTS, max_size=4) | OBJECTS, st.dictionaries(st.sampled_from(FIELDS), OBJECTS, max_size=4))
def test_any_json_is_translated_or_refused(items: Any, fields: dict[str, Any]) -> None:
    body = json.dumps({"model": "m", **fields, "input": items}).encode()
    try:
        request = decode(body)
    except InvalidRequestError:
        return
    messages = json.loads(request.body)["messages"]
    assert {message["role"] for message in messages} <= {"system", "user", "assistant", "tool"}
    called = [call["id"] for message in messages for call in message.get("tool_calls", ())]
    assert [message["tool_call_id"] for message in messages if message["role"] == "tool"] == called
