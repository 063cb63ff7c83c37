"""Bodies dense with tiny values are refused by a decoder that stops; large ones that hold text or numbers pass."""

import json
from threading import Thread
from typing import Any

import pytest

from serve.errors import InvalidRequestError
from serve.request import density
from serve.request.completion import parse
from serve.request.density import check_density

MANY = 200_000


def objects(unit: str) -> str:
    return ",".join([unit] * MANY)


NAMES = ",".join(f'"n{number}":1' for number in range(MANY))
DENSE = {
    "messages": f'"messages":[{objects("{}")}]',
    "tools": f'"tools":[{objects("{}")}]',
    "calls": f'"messages":[{{"tool_calls":[{objects("{}")}]}}]',
    "parts": f'"messages":[{{"content":[{objects("{}")}]}}]',
    "allowed": f'"tool_choice":{{"type":"allowed_tools","allowed_tools":{{"tools":[{objects("{}")}]}}}}',
    "members": NAMES,
    "template": f'"chat_template_kwargs":{{{NAMES}}}',
    "xargs": f'"vllm_xargs":{{{NAMES}}}',
    "structured": f'"structured_outputs":{{{NAMES}}}',
    "twice": f'"messages":[{objects("{}")}],"messages":[]',
    "odd": f'"messages":[{{"content":5}},{objects("{}")}]',
}


@pytest.mark.parametrize("members", DENSE.values(), ids=DENSE)
def test_a_dense_body_is_refused(members: str) -> None:
    with pytest.raises(InvalidRequestError):
        check_density(f'{{"model":"m",{members}}}'.encode())


LARGE: dict[str, Any] = {
    "code": {"messages": [{"role": "user", "content": "if x: {y: [1, {}]}\n" * MANY}]},
    "numbers": {"prompt": [17] * MANY, "x": [[]] * MANY, "y": {"z": [{"a": 1}] * MANY}},
    "schema": {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"enum": [{}] * MANY}}}]},
    "turns": {
        "messages": [
            {"role": "assistant", "content": None, "tool_calls": [{"id": "x", "function": {"name": "f"}}]},
            {"role": "tool", "tool_call_id": "x", "content": [{"type": "text", "text": "a: {b}"}, "c"]},
        ]
        * 5_000
    },
    "choice": {"messages": [{"content": "::" * MANY}], "tool_choice": "auto", "stop": None, "tools": None},
    "picture": {"messages": [{"content": [{"image_url": {"url": "data:image/png;base64," + "iVBOR+w/" * MANY * 20}}]}]},
    "prose": {"messages": [{"content": "It was a bright cold day in April, said “one”.\n" * MANY}]},
    "tokens": {"prompt": [128_000] * 1_000_000},
}


@pytest.mark.parametrize("members", LARGE.values(), ids=LARGE)
def test_a_large_body_that_is_not_dense_passes(members: Any) -> None:
    check_density(json.dumps({"model": "m", **members}).encode())


@pytest.mark.parametrize("body", [b"", b"{" * 100_000, b'{"a":' * 30_000, b'{"\xff":' + b"{}:" * 30_000, b'{"a":1}'])
def test_what_is_no_json_is_left_to_the_decoder_of_requests(body: bytes) -> None:
    check_density(body)


def test_too_many_objects_end_the_reading_before_anything_reads_the_whole_body(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "_members", None)
    with pytest.raises(InvalidRequestError, match="more than 30000"):
        check_density(f'{{"model":"m",{DENSE["messages"]}}}'.encode())


def test_a_body_of_more_marks_than_a_decoder_should_pass_over_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(density, "_outline", None)
    body = b'{"metadata":[%b0]}' % (b'{"a":0},' * 500_000)
    with pytest.raises(InvalidRequestError, match="1000000 objects and names"):
        check_density(body)


LONG = 4_100_000


@pytest.mark.parametrize("unit", ["[],", "1,", '"",', "\n", '{"":0},'])
def test_a_long_body_of_little_but_marks_is_refused_before_it_is_decoded(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(density, "_outline", None)
    with pytest.raises(InvalidRequestError, match="4000000 spaces, quotes, commas, escapes and other marks"):
        check_density(f'{{"x":[{unit * LONG}0]}}'.encode())


def test_a_long_body_of_escapes_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="escapes"):
        check_density(b'{"x":"%b"}' % (rb"\u0041" * LONG))


def test_stop_texts_are_not_built_however_many_there_are() -> None:
    assert bytes(parse(f'{{"model":"m","stop":[{objects(json.dumps("a"))}]}}'.encode()).stop).startswith(b'["a","a"')


def test_bodies_in_several_threads_are_counted_apart() -> None:
    density._counter.names = 5
    thread = Thread(target=check_density, args=(f'{{"model":"m",{NAMES[:300_000]}}}'.encode(),))
    thread.start()
    thread.join()
    assert density._counter.names == 5
