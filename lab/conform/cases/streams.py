"""Streams whose bytes arrive in arbitrary parts, and streams formatted differently from vLLM's."""

import asyncio
import json
from collections.abc import Sequence

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.scripted.scripts import TOOLS, call_frames, streaming, text_frames
from serve.http1.sse import DONE

_TEXTS = ("你好，", "世界", " 🧑‍🚀", " naïve", " нет")
_TOLD = "".join(_TEXTS)


_ARGUMENTS = json.dumps({"city": "北京", "note": 'a \\ "b" \n <b>'}, ensure_ascii=False)


async def _arrives(lab: Lab, pieces: Sequence[bytes], pause_s: float = 0.0) -> CaseResult:
    reply, _ = await lab.ask(streaming(pieces, pause_s), stream=True)
    good = reply.text == _TOLD and reply.done and not reply.failed
    seen = "the text is whole" if reply.text == _TOLD else f"the client read {reply.text!r}"
    return passed_if(good, f"{seen}, {'' if reply.done else 'no '}[DONE]; {reply.summary()}")


async def split(lab: Lab) -> CaseResult:
    whole = b"".join([*text_frames(_TEXTS), DONE])
    return await _arrives(lab, [whole[at : at + 5] for at in range(0, len(whole), 5)], 0.001)


async def joined(lab: Lab) -> CaseResult:
    return await _arrives(lab, [b"".join([*text_frames(_TEXTS), DONE])])


async def comments(lab: Lab) -> CaseResult:
    pieces = [b": ping\n\n"]
    for frame in text_frames(_TEXTS):
        pieces += [frame, b": keep-alive\n\n"]
    return await _arrives(lab, [*pieces, DONE])


async def line_ends(lab: Lab) -> CaseResult:
    return await _arrives(lab, [piece.replace(b"\n", b"\r\n") for piece in (*text_frames(_TEXTS), DONE)])


async def no_space(lab: Lab) -> CaseResult:
    return await _arrives(lab, [piece.replace(b"data: ", b"data:", 1) for piece in (*text_frames(_TEXTS), DONE)])


async def call(lab: Lab) -> CaseResult:
    """Checks a gateway that looks into tool calls, and has to put the frames together first."""
    frames = [*call_frames(_ARGUMENTS), DONE]
    whole = b"".join(frames)
    ways = {
        "cut every 5 bytes": [whole[at : at + 5] for at in range(0, len(whole), 5)],
        "in one segment": [whole],
        "with comments": [b": ping\n\n" + each for each in frames],
        "with CR LF": [each.replace(b"\n", b"\r\n") for each in frames],
        "without the space": [each.replace(b"data: ", b"data:", 1) for each in frames],
    }
    wrong = []
    for way, pieces in ways.items():
        reply, _ = await lab.ask(streaming(pieces, 0.001), stream=True, tools=TOOLS)
        if reply.call != ("look_up", _ARGUMENTS) or reply.failed:
            wrong.append(f"{way}: {reply.summary()}")
    return passed_if(not wrong, "; ".join(wrong) or "whole in every way")


async def isolation(lab: Lab) -> CaseResult:
    async def one(number: int) -> bool:
        texts = [f"<{number}.{place}>" for place in range(40)]
        reply, _ = await lab.ask(streaming([*text_frames(texts), DONE], 0.005), stream=True)
        return reply.text == "".join(texts) and reply.done

    right = await asyncio.gather(*map(one, range(lab.pace.streams)))
    return passed_if(all(right), f"{sum(right)} of {len(right)} streams got their own text, whole")


CASES = (
    Case("split", "A stream cut every 5 bytes, in the middle of characters and marks, arrives whole.", "TCP", split),
    Case(
        "joined", "A whole stream in one segment arrives whole.", "TCP; engines that emit several tokens a step", joined
    ),
    Case("comments", "SSE comments (keep-alives) between frames do no harm.", "WHATWG HTML, section 9.2", comments),
    Case(
        "line-ends",
        "A stream with CR LF line ends is a stream.",
        "WHATWG HTML, section 9.2.6; sse-starlette",
        line_ends,
    ),
    Case("no-space", "`data:` without a space is a stream too.", "WHATWG HTML, section 9.2.6; TGI", no_space),
    Case("call-stream", "A tool call in a stream arrives whole in each of these ways.", "As above", call),
    Case(
        "isolation",
        "Streams at once get each its own text, in order.",
        "Nothing is worse than another's answer",
        isolation,
    ),
)
