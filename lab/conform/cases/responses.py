"""The engine's response reaches the client unchanged."""

import asyncio
import json
from contextlib import suppress
from typing import Any

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab
from lab.scripted.arrival import Arrival
from lab.scripted.scripts import (
    TOOLS,
    answering,
    call_completion,
    call_frames,
    chunk,
    streaming,
    text_frames,
    whole,
)
from serve.http1.sse import DONE, encode_frame

_ARGUMENTS = '{"city": "Köln", "n": 2}'


def _missing(got: Any, wanted: dict[str, Any]) -> CaseResult:
    lost = [name for name, value in wanted.items() if not isinstance(got, dict) or got.get(name) != value]
    return passed_if(not lost, f"lost or changed: {', '.join(lost)}" if lost else "all arrived")


async def unknown_whole(lab: Lab) -> CaseResult:
    more: dict[str, Any] = {
        "prompt_logprobs": None,
        "kv_transfer_params": {"a": 1},
        "metrics": {"drafted": 7},
        "service_tier": "flex",
    }
    answer = whole({"content": "hello"}, **more)
    answer["choices"][0] |= {"stop_reason": 163586, "token_ids": [1, 2, 3]}
    reply, _ = await lab.ask(answering(answer))
    choice = (reply.choices() or [{}])[0]
    got = {**(reply.json() or {}), **{name: choice.get(name) for name in ("stop_reason", "token_ids")}}
    return _missing(got, {**more, "stop_reason": 163586, "token_ids": [1, 2, 3]})


async def unknown_stream(lab: Lab) -> CaseResult:
    special = chunk({"content": "a", "x_vendor": 5}, token_ids=[9], metrics={"drafted": 7})
    special["choices"][0]["token_ids"] = [4, 5]
    pieces = [
        encode_frame(chunk({"role": "assistant", "content": ""})),
        encode_frame(special),
        encode_frame(chunk({}, "stop")),
        DONE,
    ]
    reply, _ = await lab.ask(streaming(pieces), stream=True)
    found = next((each for each in reply.chunks() if each.get("metrics")), {})
    choice = (found.get("choices") or [{}])[0]
    got = {
        **found,
        "choice.token_ids": choice.get("token_ids"),
        "x_vendor": (choice.get("delta") or {}).get("x_vendor"),
    }
    return _missing(got, {"token_ids": [9], "metrics": {"drafted": 7}, "choice.token_ids": [4, 5], "x_vendor": 5})


async def reasoning(lab: Lab) -> CaseResult:
    said = {"reasoning": "because", "reasoning_content": "because"}
    reply, _ = await lab.ask(answering(whole({"content": "so", **said})))
    message = (reply.choices() or [{}])[0].get("message") or {}
    pieces = [encode_frame(chunk({"role": "assistant", **said})), encode_frame(chunk({"content": "so"}, "stop")), DONE]
    streamed, _ = await lab.ask(streaming(pieces), stream=True)
    deltas: dict[str, Any] = {}
    for choice in streamed.choices():
        deltas |= {name: value for name, value in (choice.get("delta") or {}).items() if value}
    lost = [f"whole {name}" for name in said if message.get(name) != "because"]
    lost += [f"streamed {name}" for name in said if deltas.get(name) != "because"]
    return passed_if(not lost, f"lost: {', '.join(lost)}" if lost else "whole and streamed")


async def usage(lab: Lab) -> CaseResult:
    answered = {
        "prompt_tokens": 5,
        "completion_tokens": 3,
        "total_tokens": 8,
        "prompt_tokens_details": {"cached_tokens": 4},
    }
    pieces = [*text_frames(["hello"]), encode_frame({**chunk({}), "choices": [], "usage": answered}), DONE]
    reply, _ = await lab.ask(streaming(pieces), stream=True, stream_options={"include_usage": True})
    got = next((each["usage"] for each in reversed(reply.chunks()) if each.get("usage")), None)
    return passed_if(got == answered, "as the engine told it" if got == answered else f"the client got {got}")


async def every_frame(lab: Lab) -> CaseResult:
    texts = [f"<{number}>" for number in range(500)]
    reply, _ = await lab.ask(streaming([*text_frames(texts), DONE]), stream=True)
    right = reply.text == "".join(texts) and reply.done and not reply.failed
    contents = sum(1 for choice in reply.choices() if (choice.get("delta") or {}).get("content"))
    return passed_if(
        right, f"{contents} of {len(texts)} pieces, {'' if reply.done else 'no '}[DONE]; {reply.summary()}"
    )


async def finish_reasons(lab: Lab) -> CaseResult:
    wrong = []
    for reason in ("length", "content_filter", "repetition", "stop"):
        reply, _ = await lab.ask(answering(whole({"content": "x"}, reason)))
        got = [choice.get("finish_reason") for choice in reply.choices()]
        if got != [reason]:
            wrong.append(f"{reason} became {got}")
    return passed_if(not wrong, "; ".join(wrong) or "all kept")


async def choices(lab: Lab) -> CaseResult:
    def piece(index: int, text: str | None, finish: str | None = None) -> bytes:
        made = chunk({"content": text} if text else {}, finish)
        made["choices"][0]["index"] = index
        return encode_frame(made)

    pieces = [
        piece(0, "a"),
        piece(1, "b"),
        piece(1, "B"),
        piece(0, "A"),
        piece(1, None, "stop"),
        piece(0, None, "stop"),
    ]
    reply, _ = await lab.ask(streaming([*pieces, DONE]), stream=True, n=2)
    got = {0: "", 1: ""}
    for choice in reply.choices():
        got[choice.get("index", 0)] += (choice.get("delta") or {}).get("content") or ""
    return passed_if(got == {0: "aA", 1: "bB"}, f"{got}; {reply.summary()}")


async def calls(lab: Lab) -> CaseResult:
    streamed, _ = await lab.ask(streaming([*call_frames(_ARGUMENTS), DONE]), stream=True, tools=TOOLS)
    answered, _ = await lab.ask(answering(call_completion(_ARGUMENTS)), tools=TOOLS)
    replies = {"streamed": streamed, "whole": answered}
    wrong = [f"{kind}: {reply.summary()}" for kind, reply in replies.items() if reply.call != ("look_up", _ARGUMENTS)]
    return passed_if(not wrong, f"not as sent: {'; '.join(wrong)}" if wrong else "whole and streamed")


async def flush(lab: Lab) -> CaseResult:
    """The engine goes on only when the client has its first words; a gateway that gathers would wait for ever."""
    heard, waited = asyncio.Event(), asyncio.Event()

    async def script(arrival: Arrival) -> None:
        await arrival.begin()
        for piece in text_frames(["first"], finish=None):
            await arrival.write(piece)
        with suppress(TimeoutError):
            await asyncio.wait_for(heard.wait(), 5.0)
            waited.set()
        for piece in (*text_frames([" last"]), DONE):
            await arrival.write(piece)

    text = b""
    async with lab.open(lab.body(lab.trial(script), stream=True)) as response:
        async for part in response.content.iter_any():
            text += part
            if b"first" in text:
                heard.set()
    good = waited.is_set() and b"last" in text
    return passed_if(good, "at once" if good else "the first words came only with the rest")


async def large(lab: Lab) -> CaseResult:
    text = "字" * (3 * 2**20)
    reply, _ = await lab.ask(answering(whole({"content": text})))
    return passed_if(reply.text == text, f"{len(reply.body)} bytes in {reply.seconds:.2f} s; {reply.summary()}")


async def slow(lab: Lab) -> CaseResult:
    def after(seconds: float) -> Any:
        async def script(arrival: Arrival) -> None:
            await asyncio.sleep(seconds)
            await arrival.json(whole({"content": "at last"}))

        return script

    reply, trial = await lab.ask(after(lab.pace.prefill_s))
    tries = len(trial.arrivals)
    good = reply.text == "at last" and tries == 1
    return passed_if(good, f"{reply.summary()} after {reply.seconds:.1f} s, {tries} tries")


async def content_type(lab: Lab) -> CaseResult:
    streamed, _ = await lab.ask(stream=True)
    answered, _ = await lab.ask()
    got = [(reply.header("content-type") or "none").split(";")[0] for reply in (streamed, answered)]
    return passed_if(got == ["text/event-stream", "application/json"], ", ".join(got))


async def logprobs(lab: Lab) -> CaseResult:
    answered = {"content": [{"token": "a", "logprob": -0.1234567890123, "bytes": [97], "top_logprobs": []}]}
    answer = whole({"content": "a"})
    answer["choices"][0]["logprobs"] = answered
    reply, _ = await lab.ask(answering(answer), logprobs=True)
    got = (reply.choices() or [{}])[0].get("logprobs")
    return passed_if(got == answered, "as sent" if got == answered else f"the client got {json.dumps(got)[:120]}")


CASES = (
    Case(
        "response-fields",
        "Fields of an answer that the gateway does not know reach the client.",
        "vLLM: `stop_reason`, `token_ids`, `metrics`, `kv_transfer_params`",
        unknown_whole,
    ),
    Case("chunk-fields", "The same in the chunks of a stream.", "vLLM: `token_ids` of a choice", unknown_stream),
    Case(
        "reasoning",
        "`reasoning` and `reasoning_content` reach the client, whole and streamed.",
        "vLLM sends the one, older versions and SGLang the other; LiteLLM issue 20246",
        reasoning,
    ),
    Case("usage", "The last chunk's usage arrives whole, with cached tokens.", "OpenAI API, `stream_options`", usage),
    Case("every-frame", "500 chunks arrive once each, in order, then `[DONE]`.", "OpenAI API", every_frame),
    Case(
        "finish-reason",
        "`finish_reason` is the engine's: length, content_filter, repetition, stop.",
        "An agent must know a cut answer from a whole one",
        finish_reasons,
    ),
    Case("choices", "Interleaved chunks of two choices keep their index.", "OpenAI API, `n`", choices),
    Case("tool-calls", "A good tool call arrives as it was sent, whole and streamed.", "OpenAI API", calls),
    Case("logprobs", "Log-probabilities arrive to the last digit.", "OpenAI API, `logprobs`", logprobs),
    Case(
        "flush", "The first chunk reaches the client before the engine sends the next.", "What streaming is for", flush
    ),
    Case("answer-18mb", "A whole answer of 18 MB arrives.", "Batch answers, logprobs, embeddings of images", large),
    Case("slow-answer", "A whole answer after a long silence arrives, and is asked for once.", "Long prefills", slow),
    Case("content-type", "Streams are text/event-stream, answers application/json.", "OpenAI API", content_type),
)
