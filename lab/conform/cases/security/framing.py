"""Requests whose end two readers see at different places: never two for one, never an answer for somebody else."""

import asyncio
import json
from collections.abc import Mapping

from lab.attacks.framing import CHUNKS, CODINGS, LENGTHS, LINES, Hidden
from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab, Trial
from lab.conform.raw import exchange, head
from lab.scripted.scripts import answering, whole


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


async def _two_for_one(lab: Lab, attack: Hidden) -> bool:
    """True if a request that hides another one reached the engine twice, or if the hidden one did."""
    outer, inner = lab.trial(), lab.trial()
    first = attack.framed(_body(lab, outer))
    hidden = _request(lab, inner)
    length = len(first) + len(hidden)
    await exchange(lab.url, head(lab.url, lab.headers(), attack.lines(len(first), length)) + first + hidden)
    return bool(inner.arrivals) or len(outer.arrivals) > 1


async def _framed(lab: Lab, variants: Mapping[str, Hidden]) -> CaseResult:
    """Sends every variant, then asks as another client, who must get an answer of his own."""
    broken = await asyncio.gather(*(_two_for_one(lab, attack) for attack in variants.values()))
    wrong = [name for name, two in zip(variants, broken, strict=True) if two]
    follower = _echo(lab)
    reply = await lab.send(lab.body(follower))
    if reply.text != follower.mark:
        wrong.append(f"the next client got {reply.summary()}")
    seen = f"two requests for one: {', '.join(wrong)}" if wrong else f"none of {len(variants)} hid a request"
    return passed_if(not wrong, seen)


async def lengths(lab: Lab) -> CaseResult:
    return await _framed(lab, LENGTHS)


async def codings(lab: Lab) -> CaseResult:
    return await _framed(lab, CODINGS)


async def line_ends(lab: Lab) -> CaseResult:
    return await _framed(lab, LINES)


async def chunks(lab: Lab) -> CaseResult:
    return await _framed(lab, CHUNKS)


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
