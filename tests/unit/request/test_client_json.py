"""Bodies dense with tiny values are refused by a decoder that stops; large ones that hold text or numbers pass."""

import json
from threading import Thread
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import InvalidRequestError
from serve.request import client_json
from serve.request.client_json import check_density, mend
from serve.request.completion import parse

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
    monkeypatch.setattr(client_json, "_members", None)
    with pytest.raises(InvalidRequestError, match="more than 30000"):
        check_density(f'{{"model":"m",{DENSE["messages"]}}}'.encode())


def test_a_body_of_more_marks_than_a_decoder_should_pass_over_is_not_decoded(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(client_json, "_outline", None)
    body = b'{"metadata":[%b0]}' % (b'{"a":0},' * 500_000)
    with pytest.raises(InvalidRequestError, match="1000000 objects and names"):
        check_density(body)


LONG = 4_100_000


@pytest.mark.parametrize("unit", ["[],", "1,", '"",', "\n", '{"":0},'])
def test_a_long_body_of_little_but_marks_is_refused_before_it_is_decoded(
    unit: str, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(client_json, "_outline", None)
    with pytest.raises(InvalidRequestError, match="4000000 spaces, quotes, commas, escapes and other marks"):
        check_density(f'{{"x":[{unit * LONG}0]}}'.encode())


def test_a_long_body_of_escapes_is_refused() -> None:
    with pytest.raises(InvalidRequestError, match="escapes"):
        check_density(b'{"x":"%b"}' % (rb"\u0041" * LONG))


def test_stop_texts_are_not_built_however_many_there_are() -> None:
    assert bytes(parse(f'{{"model":"m","stop":[{objects(json.dumps("a"))}]}}'.encode()).stop).startswith(b'["a","a"')


def test_bodies_in_several_threads_are_counted_apart() -> None:
    client_json._counter.names = 5
    thread = Thread(target=check_density, args=(f'{{"model":"m",{NAMES[:300_000]}}}'.encode(),))
    thread.start()
    thread.join()
    assert client_json._counter.names == 5


@given(st.text().map(lambda text: json.dumps({"content": text}).encode()))
def test_a_sound_body_comes_back_as_it_is(body: bytes) -> None:
    assert mend(body) is body


@given(st.text(st.characters() | st.characters(categories=["Cs"])))
def test_half_pairs_become_replacement_characters(text: str) -> None:
    mended = json.loads(mend(json.dumps({"content": text}).encode()))
    units = text.encode("utf-16-le", "surrogatepass")
    assert mended == {"content": units.decode("utf-16-le", "replace")}


ESCAPES = st.sampled_from([r"\ud83d", r"\ude00", r"\uD83D", r"\u0041", r"\n", "\\\\", "ud83d", "x", "\\\\" * 40])


@given(st.lists(ESCAPES).map("".join))
def test_half_pairs_are_told_from_text_that_looks_like_them_whatever_stands_before(source: str) -> None:
    body = f'{{"content": "{source}"}}'.encode()
    units = json.loads(body)["content"].encode("utf-16-le", "surrogatepass")
    assert msgspec.json.decode(mend(body)) == {"content": units.decode("utf-16-le", "replace")}


def test_a_byte_order_mark_goes() -> None:
    assert mend(b"\xef\xbb\xbf{}") == b"{}"


@pytest.mark.parametrize("body", [b"", b"\xff\xfe{", b"{", rb'{"a":"\ud8'])
def test_what_cannot_be_mended_is_left_to_the_decoder(body: bytes) -> None:
    assert mend(body) is body


@given(st.text(st.sampled_from("\\ud83d\ude00a0\ud83d\udc00")), st.integers(1, 12))
def test_half_pairs_are_found_whatever_the_windows_cut(text: str, window_bytes: int) -> None:
    source = text.encode("utf-8", "surrogatepass")
    whole = mend(source)
    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(client_json, "_SEARCHED_BYTES", window_bytes)
        assert mend(source) == whole
