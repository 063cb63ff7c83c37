"""Bodies as odd clients write them: nulls, halves of emoji, byte order marks, bytes that are no text."""

import json
import time
from typing import Any

import pytest

from serve.config.gateway import RequestsConfig
from serve.config.model_names import ModelNames
from serve.errors import InvalidRequestError
from serve.request.body_reader import RequestReader, put_own_name, take_suffix
from serve.request.completion import parse
from serve.request.features import features_of
from serve.request.patch import BodyPatch

READER = RequestReader(RequestsConfig())
TOOLS = [{"type": "function", "function": {"name": "f"}}]
KNOWN = {"m", "org/model:latest", "odd:nospec"}


def sent(body: bytes) -> bytes:
    left, _, patch = READER.read(body)
    return patch.apply(left)


def problem(body: bytes) -> InvalidRequestError:
    with pytest.raises(InvalidRequestError) as caught:
        sent(body)
    return caught.value


@pytest.mark.parametrize("name", ["tool_choice", "parallel_tool_calls", "response_format", "stop", "n", "stream"])
def test_a_null_that_means_not_given_does_not_reach_the_engine(name: str) -> None:
    body = json.dumps({"model": "m", "tools": TOOLS, name: None, "x": None}).encode()
    assert json.loads(sent(body)) == {"model": "m", "tools": TOOLS, "x": None}


def test_other_nulls_keep_their_bytes() -> None:
    body = b'{ "model":"m", "messages":[{"role":"assistant", "content":null}], "x":{"er":[null ]}, "y": null }'
    assert sent(body) == body


def test_no_preference_is_not_said() -> None:
    left, request, patch = READER.read(b'{"model":"m","enable_speculative":null}')
    assert (patch.apply(left), request.enable_speculative) == (b'{"model":"m"}', None)


@pytest.mark.parametrize(
    ("text", "mended"),
    [
        (rb"hello \ud83d", "hello \ufffd"),
        (rb"\uD83D\ud83d\ude00 x", "\ufffd\U0001f600 x"),
        (rb"\ude00 \ud83d\ude00\ude00", "\ufffd \U0001f600\ufffd"),
        (rb"\\\ud83d", "\\\ufffd"),
        (rb"\\ud83d \ud83d", "\\ud83d \ufffd"),
        (rb"\ud83d\n", "\ufffd\n"),
        (rb"\ud83dxx", "\ufffdxx"),
    ],
)
def test_half_a_surrogate_pair_becomes_a_replacement_character(text: bytes, mended: str) -> None:
    left = sent(b'{"model":"m","messages":[{"role":"user","content":"%b"}]}' % text)
    assert json.loads(left)["messages"][0]["content"] == mended


def test_whole_pairs_keep_their_bytes() -> None:
    body = rb'{"model":"m","messages":[{"role":"user","content":"\ud83d\ude00 \\ud83d"}]}'
    assert sent(body) == body


@pytest.mark.parametrize("flood", [rb"\ud83d" * 700_000, rb"\\" * 2_000_000 + rb"\ud83", rb"\n" * 2_000_000 + b"\x00"])
def test_a_flood_of_odd_escapes_is_read_in_a_moment(flood: bytes) -> None:
    began = time.process_time()
    problem(b'{"model":"m","prompt":"%b"}' % flood)
    assert time.process_time() - began < 0.5


def test_a_byte_order_mark_is_no_part_of_the_json() -> None:
    assert sent(b'\xef\xbb\xbf{"model":"m"}') == b'{"model":"m"}'


@pytest.mark.parametrize("body", [b"", b" \n", b"\xef\xbb\xbf"])
def test_an_empty_body_is_called_empty(body: bytes) -> None:
    error = problem(body)
    assert (error.code, error.message) == ("invalid_json", "The body is empty.")


@pytest.mark.parametrize(
    "body",
    [
        b'{"model":"m","vllm_xargs":{"a":1},"\xff":1}',
        b'{"model":"m","tool_choice":null,"\xff":1}',
        b'{"model":"m","enable_speculative":true,"\xc3":1}',
        b'{"model":"m","messages":[{"role":"user","content":[{"image_url":"\xff"}]}]}',
        b'{"model":"m","chat_template_kwargs":{"a":"\xff"}}',
    ],
)
def test_bytes_that_are_no_text_are_400(body: bytes) -> None:
    assert problem(body).code == "invalid_json"


def test_deep_nesting_is_400() -> None:
    deep: Any = b"[" * 200_000
    assert problem(b'{"model":"m","x":' + deep).code == "invalid_json"


def test_half_a_surrogate_pair_in_a_text_of_many_megabytes_is_mended() -> None:
    body = b'{"model":"m","prompt":"%b\\ud83d%b"}' % (b"x" * 9_000_000, b"y" * 100)
    assert sent(body) == body.replace(rb"\ud83d", rb"\ufffd")


def test_what_no_client_sends_that_much_of_is_400_and_says_what_to_do() -> None:
    error = problem(b'{"model":"m","prompt":[%b1]}' % (b"12345678," * 1_000_000))
    assert error.code == "over_limit"
    assert "shorter as a text" in error.message


def asked(model: str, **fields: object) -> tuple[str, bool | None]:
    """The model that the engine is asked for, and the preference that the policy sees."""
    body = json.dumps({"model": model, "messages": [], **fields}).encode()
    request = parse(body)
    patch = BodyPatch()
    take_suffix(patch, request, KNOWN)
    changed = json.loads(patch.apply(body))
    assert changed["model"] == request.model
    assert {**changed, "model": model} == json.loads(body)
    return request.model, features_of(request, {}).preference


@pytest.mark.parametrize(
    ("model", "served", "preference"),
    [
        ("m:nospec", "m", False),
        ("org/model:latest:nospec", "org/model:latest", False),
        ("odd:nospec", "odd:nospec", None),
        ("odd:nospec:nospec", "odd:nospec", False),
        ("unknown:nospec", "unknown:nospec", None),
        (":nospec", ":nospec", None),
    ],
)
def test_the_suffix_forbids_speculation_unless_it_is_part_of_a_name(
    model: str, served: str, preference: bool | None
) -> None:
    assert asked(model) == (served, preference)


def test_the_suffix_wins_over_a_field_that_asks_for_speculation() -> None:
    assert asked("m:nospec", enable_speculative=True) == ("m", False)


def test_what_a_pattern_matches_reaches_the_engine_under_the_models_own_name_with_its_suffix() -> None:
    names = ModelNames([("m", "m"), ("claude-*", "m")])
    body = json.dumps({"model": "claude-opus-4:nospec", "messages": []}).encode()
    request, patch = parse(body), BodyPatch()
    take_suffix(patch, request, names)
    put_own_name(patch, request, names)
    assert json.loads(patch.apply(body))["model"] == request.model == "m"
    assert features_of(request, {}).preference is False
