"""Requests whose end two readers see at different places: never two for one, never an answer for somebody else."""

import asyncio
import json
from collections.abc import Callable, Mapping

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab, Trial
from lab.conform.raw import exchange, head
from lab.conform.scripts import answering, whole

# Lines of a head, from the length up to the hidden request and the length with it.
_Lines = Callable[[int, int], str]
_WRAP = 2**64

_LENGTHS: Mapping[str, _Lines] = {
    "two lengths": lambda part, all_: f"content-length: {all_}\r\ncontent-length: {part}",
    "two lengths, short one first": lambda part, all_: f"content-length: {part}\r\ncontent-length: {all_}",
    "a list": lambda part, all_: f"content-length: {part}, {all_}",
    "a plus": lambda part, _: f"content-length: +{part}",
    "a minus": lambda part, _: f"content-length: -{part}",
    "hexadecimal": lambda part, _: f"content-length: 0x{part:x}",
    "2^64 too much": lambda part, _: f"content-length: {_WRAP + part}",
    "a fraction": lambda part, _: f"content-length: {part}.0",
    "an underscore": lambda part, _: f"content-length: {str(part)[0]}_{str(part)[1:]}",
    "two numbers": lambda part, all_: f"content-length: {part} {all_}",
    "a vertical tab": lambda part, _: f"content-length: \x0b{part}",
    "a NUL": lambda part, _: f"content-length: {part}\0",
}

_CODINGS: Mapping[str, str] = {
    "chunked": "transfer-encoding: chunked",
    "capitals": "Transfer-Encoding: CHUNKED",
    "xchunked": "transfer-encoding: xchunked",
    "identity": "transfer-encoding: identity",
    "chunked twice": "transfer-encoding: chunked, chunked",
    "chunked before identity": "transfer-encoding: chunked, identity",
    "chunked before gzip": "transfer-encoding: chunked, gzip",
    "two lines": "transfer-encoding: chunked\r\ntransfer-encoding: identity",
    "quoted": 'transfer-encoding: "chunked"',
    "a parameter": "transfer-encoding: chunked;q=1",
    "an empty one": "transfer-encoding:\r\ntransfer-encoding: chunked",
    "a vertical tab": "transfer-encoding: \x0bchunked",
}

_LINES: Mapping[str, str] = {
    "a bare LF": "x-odd: y\ntransfer-encoding: chunked",
    "a bare CR": "x-odd: y\rtransfer-encoding: chunked",
    "a space before the colon": "transfer-encoding : chunked",
    "a tab before the colon": "transfer-encoding\t: chunked",
    "a fold": "x-odd: y\r\n transfer-encoding: chunked",
    "a folded value": "transfer-encoding:\r\n chunked",
    "a value cut by a fold": "transfer-encoding: chun\r\n ked",
    "a NUL in the name": "transfer-encoding\0: chunked",
    "a NUL in the value": "transfer-encoding: chunked\0",
    "a line without a colon": "x-odd\r\ntransfer-encoding: chunked",
    "a name that is empty": ": y\r\ntransfer-encoding: chunked",
}

_CHUNKS: Mapping[str, Callable[[bytes], bytes]] = {
    "2^64 too much": lambda data: b"%x\r\n%b\r\n0\r\n\r\n" % (_WRAP + len(data), data),
    "hexadecimal with 0x": lambda data: b"0x%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a plus": lambda data: b"+%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a minus": lambda data: b"-%x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "words behind the size": lambda data: b"%x x\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a bare LF behind the size": lambda data: b"%x\n%b\r\n0\r\n\r\n" % (len(data), data),
    "a bare LF in an extension": lambda data: b"%x;a\nb\r\n%b\r\n0\r\n\r\n" % (len(data), data),
    "no line end behind the data": lambda data: b"%x\r\n%b0\r\n\r\n" % (len(data), data),
    "a bare LF behind the data": lambda data: b"%x\r\n%b\n0\r\n\r\n" % (len(data), data),
    "no size": lambda data: b"\r\n%b\r\n0\r\n\r\n" % data,
}


def _echo(lab: Lab) -> Trial:
    """Returns a trial whose answer is its own mark."""
    trial = lab.trial()
    lab.engine.scripts[trial.mark] = answering(whole({"content": trial.mark}))
    return trial


def _body(lab: Lab, trial: Trial) -> bytes:
    return json.dumps(lab.body(trial)).encode()


def _request(lab: Lab, trial: Trial) -> bytes:
    body = _body(lab, trial)
    return head(lab.url, lab.headers(), f"content-length: {len(body)}") + body


def _chunked(data: bytes) -> bytes:
    return b"%x\r\n%b\r\n0\r\n\r\n" % (len(data), data)


async def _two_for_one(lab: Lab, lines: _Lines, framed: Callable[[bytes], bytes]) -> bool:
    """True if a request that hides another one reached the engine twice, or if the hidden one did."""
    outer, inner = lab.trial(), lab.trial()
    first = framed(_body(lab, outer))
    hidden = _request(lab, inner)
    length = len(first) + len(hidden)
    await exchange(lab.url, head(lab.url, lab.headers(), lines(len(first), length)) + first + hidden)
    return bool(inner.arrivals) or len(outer.arrivals) > 1


async def _framed(
    lab: Lab, variants: Mapping[str, _Lines], framed: Mapping[str, Callable[[bytes], bytes]] | None = None
) -> CaseResult:
    """Sends every variant, then asks as another client, who must get an answer of his own."""
    framings = framed or dict.fromkeys(variants, bytes)
    broken = await asyncio.gather(*(_two_for_one(lab, variants[name], framings[name]) for name in variants))
    wrong = [name for name, two in zip(variants, broken, strict=True) if two]
    follower = _echo(lab)
    reply = await lab.send(lab.body(follower))
    if reply.text != follower.mark:
        wrong.append(f"the next client got {reply.summary()}")
    seen = f"two requests for one: {', '.join(wrong)}" if wrong else f"none of {len(variants)} hid a request"
    return passed_if(not wrong, seen)


def _beside_length(lines: Mapping[str, str]) -> dict[str, _Lines]:
    """Returns lines that stand beside a length in which the hidden request is part of the body."""

    def beside(line: str) -> _Lines:
        return lambda _, all_: f"content-length: {all_}\r\n{line}"

    return {name: beside(line) for name, line in lines.items()}


async def lengths(lab: Lab) -> CaseResult:
    return await _framed(lab, _LENGTHS)


async def codings(lab: Lab) -> CaseResult:
    return await _framed(lab, _beside_length(_CODINGS), dict.fromkeys(_CODINGS, _chunked))


async def line_ends(lab: Lab) -> CaseResult:
    return await _framed(lab, _beside_length(_LINES), dict.fromkeys(_LINES, _chunked))


async def chunks(lab: Lab) -> CaseResult:
    return await _framed(lab, dict.fromkeys(_CHUNKS, lambda _, __: "transfer-encoding: chunked"), _CHUNKS)


async def trailers(lab: Lab) -> CaseResult:
    """A trailer cannot frame, identify or authenticate anything."""
    outer, inner = lab.trial(), lab.trial()
    secret = "conform-trailer"
    first = _body(lab, outer)
    trailer = f"content-length: 3\r\ntransfer-encoding: identity\r\nx-api-key: {secret}\r\nhost: {secret}\r\n"
    sent = b"%x\r\n%b\r\n0\r\n%b\r\n" % (len(first), first, trailer.encode())
    answer = await exchange(
        lab.url, head(lab.url, lab.headers(), "transfer-encoding: chunked") + sent + _request(lab, inner)
    )
    arrivals = [*outer.arrivals, *inner.arrivals]
    once = len(outer.arrivals) <= 1 and len(inner.arrivals) <= 1
    kept = not any(secret in value for arrival in arrivals for _, value in arrival.headers)
    start = answer.split(b"\r\n", 1)[0].decode("latin-1") or "closed without an answer"
    return passed_if(
        once and kept, f"{start}; {len(arrivals)} of 2 requests, trailer {'kept' if kept else 'passed on'}"
    )


async def pipelined(lab: Lab) -> CaseResult:
    trials = [_echo(lab) for _ in range(3)]
    answer = await exchange(lab.url, b"".join(_request(lab, trial) for trial in trials))
    places = [answer.find(trial.mark.encode()) for trial in trials]
    answered = [place for place in places if place >= 0]
    once = all(len(trial.arrivals) <= 1 and answer.count(trial.mark.encode()) <= 1 for trial in trials)
    in_order = answered == sorted(answered) == places[: len(answered)]
    seen = (
        f"{len(answered)} of 3 answered" + ("" if once else ", one of them twice") + ("" if in_order else ", mixed up")
    )
    return passed_if(once and in_order and bool(answered), seen)


_SOURCE = "RFC 9112 sections 6.3, 7.1 and 11.2: request smuggling"

CASES = (
    Case("framing-lengths", "Lengths that are odd or contradict each other hide no second request.", _SOURCE, lengths),
    Case("framing-codings", "Nor do codings beside a length.", _SOURCE, codings),
    Case("framing-lines", "Nor do bare LF and CR, folds, NULs and spaces in header lines.", _SOURCE, line_ends),
    Case("framing-chunks", "Nor do chunks whose size or end is malformed.", _SOURCE, chunks),
    Case("trailers", "Trailers do not frame the next request, and do not reach the engine as headers.",
         "RFC 9110 section 6.5.1", trailers),
    Case("pipelined", "Pipelined requests reach the engine once each; answers come in their order.",
         "RFC 9112 section 9.3.2", pipelined),
)  # fmt: skip
