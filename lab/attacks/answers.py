# ruff: noqa: E501 - tables
"""Answers of engines that misbehave: the client has a sound answer or an explicit error, and others go on."""

from __future__ import annotations

import json
import zlib
from collections.abc import Iterable
from functools import partial
from typing import Any

from lab.attacks.shapes import DENSE, SHAPES
from lab.scripted import scripts
from lab.scripted.arrival import chunked
from serve.http1.sse import DONE

_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: text/event-stream\r\ntransfer-encoding: chunked\r\n\r\n"
chunk = partial(scripts.chunk, model="m")
whole = partial(scripts.whole, model="m")


def entry(arguments: str, name: str = "f", index: int = 0) -> dict[str, Any]:
    """Returns a call."""
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": f"call{index}", "type": "function", "function": function}


def frame(payload: Any) -> bytes:
    """Returns one frame, spaced as `json.dumps` writes it: attacks replace parts of it."""
    return b"data: " + json.dumps(payload).encode() + b"\n\n"


def stream(frames: Iterable[bytes], *, done: bool = True) -> bytes:
    """Returns a whole response that streams frames, a chunk each."""
    return _HEAD + b"".join(map(chunked, [*frames, DONE] if done else frames)) + b"0\r\n\r\n"


def body(payload: Any, status: str = "200 OK", head: str = "") -> bytes:
    """Returns a whole response."""
    data = payload if isinstance(payload, bytes) else json.dumps(payload).encode()
    kind = "" if "content-type" in head else "content-type: application/json\r\n"
    return f"HTTP/1.1 {status}\r\n{kind}{head}content-length: {len(data)}\r\n\r\n".encode() + data


_MB = 2**20
_PLAIN_HEAD = b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\n"
_HI = frame(chunk({"content": "hi"}))
_END = frame(chunk({}, "stop"))
_CALL = frame(chunk({"tool_calls": [entry("{}")]}))
_CALLED = frame(chunk({}, "tool_calls"))


def _calls(*entries: Any) -> bytes:
    return frame(chunk({"tool_calls": list(entries)}))


def _usage(**usage: Any) -> bytes:
    return frame({**chunk({}), "choices": [], "usage": usage})


def _choice(**choice: Any) -> bytes:
    return frame({**chunk({}), "choices": [choice]})


# Frames before `[DONE]`; a whole answer is made of the same parts.
STREAMS: dict[str, bytes] = {
    "no finish reason": stream([_HI]), "nothing": stream([]), "nothing at all": stream([], done=False),
    "no DONE": stream([_HI, _END], done=False), "DONE twice": stream([_HI, _END, DONE]),
    "DONE first": stream([DONE, _HI, _END]), "an error, then DONE": stream([_HI, frame({"error": {"message": "x"}})]),
    "an error that is text": stream([_HI, frame({"error": "x"})]), "error null": stream(
        [_HI.replace(b'{"id"', b'{"error": null, "id"'), _END]),
    "an error event": stream([_HI, b'event: error\ndata: {"message":"x"}\n\n'], done=False),
    "two finish reasons": stream([_HI, _END, _END]), "stop, then length": stream([_HI, _END, frame(chunk({}, "length"))]),
    "text behind the end": stream([_HI, _END, _HI]), "calls behind the end": stream([_HI, _END, _CALL, _CALLED]),
    "a reason that is a number": stream([_HI, _choice(index=0, delta={}, finish_reason=7)]),
    "an unknown reason": stream([_HI, frame(chunk({}, "tired"))]), "an empty reason": stream([_HI, frame(chunk({}, ""))]),
    "a call, reason stop": stream([_CALL, _END]), "no call, reason tool_calls": stream([_HI, _CALLED]),
    "a name that changes": stream([_calls(entry("{", "f")), _calls(entry("}", "g")), _CALLED]),
    "a name again and again": stream([_calls(entry("{", "f")), _calls(entry("}", "f")), _CALLED]),
    "an id that changes": stream([_calls({**entry("{"), "id": "a"}), _calls({**entry("}"), "id": "b"}), _CALLED]),
    "an index that jumps": stream([_calls(entry("{}", index=7)), _CALLED]),
    "indices backwards": stream([_calls(entry("{}", index=1)), _calls(entry("{}", index=0)), _CALLED]),
    "an index of 2^70": stream([_calls(entry("{}", index=2**70)), _CALLED]),
    "an index of -1": stream([_calls(entry("{}", index=-1)), _CALLED]),
    "an index of 1.0": stream([_calls({**entry("{}"), "index": 1.0}), _CALLED]),
    "an index of true": stream([_calls({**entry("{}"), "index": True}), _CALLED]),
    "the same id twice": stream([_calls(entry("{}", index=0), {**entry("{}", index=1), "id": "call0"}), _CALLED]),
    "ids of 1 MB": stream([_calls({**entry("{}"), "id": "x" * 900_000}), _CALLED]),
    "an id that is a number": stream([_calls({**entry("{}"), "id": 7}), _CALLED]),
    "arguments that are an object": stream([_calls({**entry("{}"), "function": {"name": "f", "arguments": {}}}), _CALLED]),
    "calls that are an object": stream([frame(chunk({"tool_calls": {"0": entry("{}")}})), _CALLED]),
    "calls that are a number": stream([frame(chunk({"tool_calls": 7})), _CALLED]),
    "calls of null": stream([_calls(None), _CALLED]), "calls of text": stream([_calls("f"), _CALLED]),
    "a delta that is text": stream([_choice(index=0, delta="hi", finish_reason=None), _END]),
    "a delta that is a list": stream([_choice(index=0, delta=[1], finish_reason=None), _END]),
    "content that is a number": stream([frame(chunk({"content": 7})), _END]),
    "content in parts": stream([frame(chunk({"content": [{"type": "text", "text": "hi"}]})), _END]),
    "reasoning that is a list": stream([frame(chunk({"reasoning": ["x"]})), _END]),
    "a refusal": stream([frame(chunk({"refusal": "no"})), _END]), "audio": stream([frame(chunk({"audio": {"a": 1}})), _END]),
    "choices of null": stream([frame({**chunk({}), "choices": None}), _HI, _END]),
    "choices of text": stream([frame({**chunk({}), "choices": ["x"]}), _END]),
    "choices that are an object": stream([frame({**chunk({}), "choices": {"0": {}}}), _END]),
    "no choices": stream([frame({"id": "c"}), _HI, _END]), "two choices of one index": stream(
        [frame({**chunk({}), "choices": [{"index": 0, "delta": {"content": "a"}}] * 2}), _END]),
    "a choice of index 5": stream([_choice(index=5, delta={"content": "x"}, finish_reason="stop")]),
    "a choice of index 2^70": stream([_choice(index=2**70, delta={"content": "x"}, finish_reason="stop")]),
    "a choice of index text": stream([_choice(index="0", delta={"content": "x"}, finish_reason="stop")]),
    "5,000 choices": stream([_choice(index=n, delta={"content": "x"}, finish_reason=None) for n in range(5_000)]),
    "5,000 choices at once": stream([frame({**chunk({}), "choices": [
        {"index": n, "delta": {"content": "x"}, "finish_reason": "stop"} for n in range(5_000)]})]),
    "logprobs of text": stream([_choice(index=0, delta={"content": "x"}, finish_reason="stop", logprobs="x")]),
    "logprobs of null lists": stream([_choice(index=0, delta={"content": "x"}, finish_reason="stop",
                                              logprobs={"content": None, "refusal": None})]),
    "token_ids of text": stream([_choice(index=0, delta={"content": "x"}, finish_reason="stop", token_ids="x")]),
    "a list": stream([frame([_HI.decode()]), _END]), "a number": stream([frame(7), _END]), "null": stream([frame(None)]),
    "no JSON": stream([b"data: {x}\n\n", _END]), "half a JSON": stream([b'data: {"id":\n\n', _END]),
    "NaN": stream([b'data: {"choices":[],"x":NaN}\n\n', _HI, _END]), "an integer of 5,000 digits": stream(
        [_HI[:-3] + b',"x":' + b"7" * 5_000 + b"}\n\n", _END]),
    "created of 2^70": stream([frame({**chunk({"content": "x"}), "created": 2**70}), _CALL, _CALLED]),
    "1,000 brackets": stream([_HI[:-3] + b',"x":' + b"[" * 1_000 + b"]" * 1_000 + b"}\n\n", _END]),
    "invalid UTF-8": stream([_HI.replace(b"hi", b"\xff\xfe"), _END]),
    "a lone surrogate": stream([_HI.replace(b"hi", b"\\ud83d"), _END]),
    "a lone surrogate in a name": stream([_CALL.replace(b'"f"', b'"\\ud83d"'), _CALLED]),
    "half a character in arguments": stream([_calls(entry('{"a":"\ud83d"}')), _CALLED]),
    "NUL": stream([_HI.replace(b"hi", b"\\u0000"), _END]), "U+2028": stream([frame(chunk({"content": "\u2028"})), _END]),
    "comments": stream([b": ping\n\n" * 20_000, _HI, _END]), "event lines": stream([b"event: x\n" + _HI, _END]),
    "ids and retries": stream([b"id: 1\nretry: 1\n" + _HI, b"id\ndata\n\n", _END]), "CR LF": stream(
        [_HI.replace(b"\n", b"\r\n"), _END.replace(b"\n", b"\r\n")]),
    "CR": stream([_HI.replace(b"\n", b"\r"), _END]), "no space": stream([_HI.replace(b"data: ", b"data:"), _END]),
    "BOM": stream([b"\xef\xbb\xbf" + _HI, _END]), "two data lines": stream(
        [_HI.replace(b', "choices"', b',\ndata: "choices"'), _END]),
    "blank lines": stream([b"\n\n\n\n", _HI, b"\n", _END]), "DATA": stream([_HI.replace(b"data", b"DATA"), _END]),
    "one frame, byte by byte": _HEAD + b"".join(chunked(bytes([b])) for b in _HI + _END + DONE) + b"0\r\n\r\n",
    "100,000 tiny deltas": stream([frame(chunk({"content": "x"})) * 2_000] * 50 + [_END]),
    "100,000 tiny deltas of a call": stream([_calls(entry('{"a":"')), *[_calls({"index": 0, "function": {
        "arguments": "x"}}) * 2_000] * 50, _calls({"index": 0, "function": {"arguments": '"}'}}), _CALLED]),
    "100,000 tiny deltas of JSON": stream([frame(chunk({"content": '{"a":"'})), *[frame(chunk({"content": "x"})) * 2_000]
                                           * 50, frame(chunk({"content": '"}'})), _END]),
    "100,000 chunks of a byte": _HEAD + chunked(b"x") * 100_000 + b"0\r\n\r\n",
    "100,000 empty frames": stream([b"data:\n\n" * 100_000, _HI, _END]),
    "500 calls in one delta": stream([_calls(*(entry('{"a":"b"}', index=n) for n in range(500))), _CALLED]),
    "512 calls, a frame each": stream([*(_calls(entry('{"a":"b"}', index=n)) for n in range(512)), _CALLED]),
    "5,000 calls": stream([_calls(*(entry("{}", index=n) for n in range(5_000))), _CALLED]),
    "10,000 null calls": stream([_calls(*[None] * 10_000), _CALLED]),
    "M10 a line of 50 MB": _HEAD + chunked(b'data: {"x":"' + b"x" * 50 * _MB) + b"0\r\n\r\n",
    "a stream without a line end": _HEAD + chunked(b"x" * 20 * _MB) + b"0\r\n\r\n",
    "spaces without end": stream([frame(chunk({"content": " " * 10_000})) * 40] * 12 + [_END]),
    "markup without end": stream([frame(chunk({"content": "<tool_call>" * 1_000})) * 40] * 4 + [_END]),
    "reasoning without end": stream([frame(chunk({"reasoning": "hm " * 4_000})) * 20] * 8 + [_END]),
    "usage, negative": stream([_HI, _END, _usage(prompt_tokens=-5, completion_tokens=-7, total_tokens=-12)]),
    "usage of text": stream([_HI, _END, _usage(prompt_tokens="x", completion_tokens=None, total_tokens=[])]),
    "usage of 2^70": stream([_HI, _END, _usage(prompt_tokens=2**70, completion_tokens=2**70, total_tokens=2**70)]),
    "usage that is a list": stream([_HI, _END, frame({**chunk({}), "choices": [], "usage": [1]})]),
    "usage that is text": stream([_HI, _END, frame({**chunk({}), "choices": [], "usage": "many"})]),
    "usage details of text": stream([_HI, _END, _usage(prompt_tokens=1, completion_tokens=1, total_tokens=2,
                                     prompt_tokens_details="x", completion_tokens_details=[1])]),
    "usage of fractions": stream([_HI, _END, _usage(prompt_tokens=1.5, completion_tokens=1e300, total_tokens=2)]),
    "usage everywhere": stream([frame({**chunk({"content": "x"}), "usage": {"prompt_tokens": 1}}), _END]),
    "cut in the middle": _HEAD + chunked(_HI[:20]), "cut after a frame": _HEAD + chunked(_HI),
    "cut after the end": _HEAD + chunked(_HI + _END), "cut before the last chunk": _HEAD + chunked(_HI + _END + DONE),
    "a chunk that is malformed": _HEAD + chunked(_HI) + b"zz\r\n", "a chunk extension": _HEAD + b"%x;a=b\r\n%b\r\n0\r\n\r\n"
        % (len(_HI + _END + DONE), _HI + _END + DONE),
    "a chunk extension of 1 MB": _HEAD + b"1;" + b"a" * _MB + b"\r\nx\r\n0\r\n\r\n",
    "a trailer": stream([_HI, _END])[:-2] + b"x-a: b\r\ncontent-length: 5\r\n\r\n",
    "M3 an endless trailer": stream([_HI, _END])[:-2] + b"x: y\r\n" * 2_000_000,
    "a second answer behind": stream([_HI, _END]) + stream([_HI, _END]),
    "rubbish behind": stream([_HI, _END]) + b"\0\0rubbish\r\n\r\n",
    "100 Continue first": b"HTTP/1.1 100 Continue\r\n\r\n" * 3 + stream([_HI, _END]),
    "103 first": b"HTTP/1.1 103 Early Hints\r\nlink: x\r\n\r\n" + stream([_HI, _END]),
    "102 without end": b"HTTP/1.1 102 Processing\r\n\r\n" * 100_000, "101": b"HTTP/1.1 101 Switching\r\nupgrade: x\r\n"
        b"connection: upgrade\r\n\r\n", "gzip": _HEAD.replace(b"content-type", b"content-encoding: gzip\r\ncontent-type")
        + chunked(zlib.compress(_HI)) + b"0\r\n\r\n",
    "gzip, unsaid": _HEAD + chunked(zlib.compress(_HI + _END + DONE)) + b"0\r\n\r\n",
    "TE gzip": _HEAD.replace(b": chunked", b": gzip, chunked") + chunked(_HI + _END + DONE) + b"0\r\n\r\n",
    "TE identity": _HEAD.replace(b": chunked", b": identity") + _HI + _END + DONE,
    "two codings": _HEAD.replace(b"transfer-", b"transfer-encoding: identity\r\ntransfer-") + chunked(_HI) + b"0\r\n\r\n",
    "CL and TE": _HEAD.replace(b"transfer", b"content-length: 5\r\ntransfer") + chunked(_HI + _END + DONE) + b"0\r\n\r\n",
    "HTTP/1.0": b"HTTP/1.0 200 OK\r\ncontent-type: text/event-stream\r\n\r\n" + _HI + _END + DONE,
    "HTTP/2.0": b"HTTP/2.0 200 OK\r\n\r\n", "HTTP/0.9": _HI, "a status of 99": b"HTTP/1.1 99 x\r\n\r\n",
    "a status of 1000": b"HTTP/1.1 1000 x\r\n\r\n", "no reason phrase": _HEAD.replace(b" OK", b"") + chunked(
        _HI + _END + DONE) + b"0\r\n\r\n",
    "a redirect": b"HTTP/1.1 302 Found\r\nlocation: http://127.0.0.1:1/\r\ncontent-length: 0\r\n\r\n",
    "204": b"HTTP/1.1 204 No Content\r\n\r\n", "205": b"HTTP/1.1 205 Reset\r\ncontent-length: 0\r\n\r\n",
    "206": _HEAD.replace(b"200 OK", b"206 Partial") + chunked(_HI + _END + DONE) + b"0\r\n\r\n",
    "304": b"HTTP/1.1 304 Not Modified\r\n\r\n", "401": body({"error": {"message": "x"}}, "401 No"),
    "429": body({"error": {"message": "x"}}, "429 Busy", "retry-after: \0x\r\n"), "500": body({"a": 1}, "500 Oh"),
    "500 in HTML": body(b"<html>", "500 Oh", "content-type: text/html\r\n"), "503 of 30 MB": body(b"x" * 30 * _MB, "503 Busy"),
    "400 of null": body(None, "400 Bad"), "400 of text": body("x", "400 Bad"), "422 of a list": body(
        {"detail": [{"loc": ["body"], "msg": "x"}]}, "422 Bad"), "413": body({"error": "too long"}, "413 Long"),
    "headers of 1 MB": b"HTTP/1.1 200 OK\r\n" + b"a: " + b"b" * _MB + b"\r\n\r\n",
    "100,000 headers": b"HTTP/1.1 200 OK\r\n" + b"a: b\r\n" * 100_000 + b"\r\n",
    "a header of line ends": _HEAD.replace(b"\r\n\r\n", b"\r\nx-a: b\rc\r\n\r\n") + chunked(_HI) + b"0\r\n\r\n",
    "headers of ours": _HEAD.replace(b"\r\n\r\n", b"\r\nx-specgate-pool: x\r\nset-cookie: a\r\nx-request-id: y\r\n"
                                     b"connection: close\r\nstrict-transport-security: x\r\n\r\n")
        + chunked(_HI + _END + DONE) + b"0\r\n\r\n",
    "a header of obs-text": _HEAD.replace(b"\r\n\r\n", b"\r\nx-a: \xff\xfe\r\n\r\n") + chunked(_HI + _END + DONE)
        + b"0\r\n\r\n",
    "a content type of rubbish": body(whole({"content": "hi"}), head="content-type: \0\r\n"),
    "a content type in capitals": _HEAD.replace(b"text/event-stream", b"TEXT/EVENT-STREAM") + chunked(_HI + _END + DONE)
        + b"0\r\n\r\n",
    "no content type": body(whole({"content": "hi"})).replace(b"content-type: application/json\r\n", b""),
    "a whole answer to a stream": body(whole({"content": "hi"})),
    "a length too long": _PLAIN_HEAD + b"content-length: 9999\r\n\r\n{}", "a length too short": _PLAIN_HEAD
        + b"content-length: 3\r\n\r\n" + json.dumps(whole({"content": "hi"})).encode(),
    "two lengths": _PLAIN_HEAD + b"content-length: 3\r\ncontent-length: 4\r\n\r\n{}  ",
    "until closed": _PLAIN_HEAD + b"\r\n" + json.dumps(whole({"content": "hi"})).encode(),
    "silence, then the end": b"",
}  # fmt: skip


def _odd(message: Any, **more: Any) -> bytes:
    return body({**whole({}), "choices": [{"index": 0, "message": message, "finish_reason": "stop"}], **more})


WHOLES: dict[str, bytes] = {
    **{name: body(shape) for name, shape in SHAPES.items()},
    **{f"dense {name}": body(text().encode()) for name, text in DENSE.items()},
    "a call of null": _odd({"tool_calls": [None]}),
    "arguments of an object": _odd({"tool_calls": [{**entry("{}"), "function": {"name": "f", "arguments": {"a": 1}}}]}),
    "a name of null": _odd({"tool_calls": [{**entry("{}"), "function": {"name": None, "arguments": "{}"}}]}),
    "choices null": body({**whole({}), "choices": None}), "no choices": body({**whole({}), "choices": []}),
    "choices of text": body({**whole({}), "choices": "x"}), "no body": body(b""),
    "no reason": body({**whole({}), "choices": [{"index": 0, "message": {"content": "x"}}]}),
    "a reason of 7": body({**whole({}), "choices": [{"index": 0, "message": {"content": "x"}, "finish_reason": 7}]}),
    "usage of text": _odd({"content": "x"}, usage="x"), "usage of null": _odd({"content": "x"}, usage=None),
    "usage, negative": _odd({"content": "x"}, usage={"prompt_tokens": -1, "completion_tokens": -2, "total_tokens": -3}),
    "usage of 2^70": _odd({"content": "x"}, usage={"prompt_tokens": 2**70, "completion_tokens": 2**70}),
    "an error of 200": body({"error": {"message": "x", "code": 7}}), "object: error": body(
        {"object": "error", "message": "x", "code": 400}), "model of 7": _odd({"content": "x"}, model=7),
    "id of null": _odd({"content": "x"}, id=None), "created of 2^70": _odd({"content": "x"}, created=2**70),
    "two choices of one index": body({**whole({}), "choices": whole({"content": "x"})["choices"] * 2}),
    "5,000 choices": body({**whole({}), "choices": [
        {"index": n, "message": {"content": "x"}, "finish_reason": "stop"} for n in range(5_000)]}),
    "500 calls": _odd({"content": None, "tool_calls": [entry('{"a":"b"}', index=n) for n in range(500)]}),
    "50,000 calls": _odd({"content": None, "tool_calls": [entry("{}", index=n) for n in range(50_000)]}),
    "14 MB of escapes": body(json.dumps(whole({"content": "@"})).encode().replace(b"@", b"\\u0041" * 2_400_000)),
    "14 MB of short escapes": body(json.dumps(whole({"content": "@"})).encode().replace(b"@", b"\\n" * 7_000_000)),
    "14 MB of text": body(whole({"content": "x" * 14_000_000})),
    "14 MB of wide text": body(json.dumps(whole({"content": "@"})).encode().replace(b"@", "\u4e2d".encode() * 4_600_000)),
    "14 MB of numbers": body(json.dumps(whole({"content": "@"}, x=["@@"])).encode().replace(
        b'"@@"', b",".join([b"1.234567890123"] * 900_000))),
    "14 MB of 4,000-digit numbers": body(json.dumps(whole({"content": "@"}, x=["@@"])).encode().replace(
        b'"@@"', b",".join([b"7" * 4_000] * 3_400))),
    "14 MB of members": body(whole({"content": "x"}, x={f"k{n}": n for n in range(800_000)})),
    "14 MB of log-probabilities": body({**whole({}), "choices": [{**whole({"content": "x"})["choices"][0], "logprobs": {
        "content": [{"token": "x", "logprob": -1.5, "bytes": [120], "top_logprobs": []}] * 160_000}}]}),
    "a call of 14 MB": _odd({"content": None, "tool_calls": [entry(json.dumps({"a": "x\n" * 4_600_000}))]}),
    "300 MB": b"HTTP/1.1 200 OK\r\ncontent-type: application/json\r\ncontent-length: 300000000\r\n\r\n" + b"x" * 20 * _MB,
    "an answer of spaces": body(b" " * 10 * _MB), "BOM": body(b"\xef\xbb\xbf" + json.dumps(whole({"content": "x"})).encode()),
    "invalid UTF-8": body(json.dumps(whole({"content": "@"})).encode().replace(b"@", b"\xff")),
    "a lone surrogate": body(json.dumps(whole({"content": "@"})).encode().replace(b"@", b"\\ud83d")),
}  # fmt: skip
