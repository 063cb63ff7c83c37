"""Every grammar behind the gateway: whatever an engine makes of a call, none goes out broken and none sound is lost.

The engine of the first pool parses the call rightly, or leaks its text, or hands on raw text that the gateway parses,
or damages it; the second pool answers rightly. The same call comes out of all three APIs, streamed and whole.
"""

from __future__ import annotations

import json
from typing import Any

import pytest
from support.engines import Engine, saying
from support.guard_stack import KNOWN, NO_ADVISORIES, SPECULATES
from support.stack import running
from support.written import ARGUMENTS, SOUND, WRITTEN

from serve.guard.core import Outcome
from serve.parsing import GRAMMARS
from serve.parsing.families import thinking_of
from tests.component.test_sound_answers import PATHS, asked, request_to

FINAL = {
    "right": Outcome.CLEAN, "leaking": Outcome.RESCUED, "raw": Outcome.CLEAN,
    "cut leak": Outcome.RERUN, "empty": Outcome.RERUN, "cut raw": Outcome.RERUN,
}  # fmt: skip


def _raw(grammar: str) -> str:
    """The whole output, with what templates leave open of reasoning and channels."""
    if grammar == "harmony":
        return f"<|channel|>commentary<|message|>I write.<|end|><|start|>assistant{WRITTEN[grammar]}"
    if grammar == "kimi_k3":
        return f"I write.<|close|>response<|sep|>{WRITTEN[grammar]}<|close|>message<|sep|>"
    thought = "Hm.</think>\n\n" if thinking_of(grammar).start == "always" else ""
    return f"{thought}I write.\n\n{WRITTEN[grammar]}"


def _call(arguments: str) -> list[dict[str, Any]]:
    function = {"name": "write_file", "arguments": arguments}
    return [{"id": "c1", "type": "function", "function": function}]


def _first(grammar: str, mode: str, stream: bool) -> Engine:
    raw, written = _raw(grammar), WRITTEN[grammar]
    cut = -(len(written) // 3)
    answers: dict[str, tuple[str, list[dict[str, Any]]]] = {
        "right": ("I write.", _call(SOUND)),
        "leaking": (f"I write.\n\n{written}", []),
        "cut leak": (f"I write.\n\n{written[:cut]}", []),
        "empty": ("I write.", _call("{}")),
        "raw": (raw, []),
        "cut raw": (raw[: raw.index(written) + len(written) + cut], []),
    }
    return saying(stream, *answers[mode])


def _config(grammar: str, raw: bool) -> dict[str, Any]:
    first = {"kind": "sim", "facts": SPECULATES, **({"parse": "gateway"} if raw else {})}
    if raw:
        first["facts"] = {**SPECULATES, "engine": "sglang"}
    pools = {"speculative": first, "standard": {"kind": "sim", "facts": KNOWN}}
    model = {"family": "sim", "grammar": grammar, "thinking": False, "pools": pools}
    return {"models": {"m": model}, "policy": {"advisories": NO_ADVISORIES}}


def _calls(text: str) -> list[dict[str, Any]]:
    """The arguments of all calls in a response of any API, streamed or whole."""
    lines = [line.removeprefix("data: ") for line in text.split("\n") if line.startswith(("data: ", "{"))]
    found: dict[Any, str] = {}
    for line in lines:
        if line != "[DONE]":
            _collect(json.loads(line), found)
    return [json.loads(arguments) for arguments in found.values()]


def _collect(event: dict[str, Any], found: dict[Any, str]) -> None:
    for choice in event.get("choices", ()):
        for call in (choice.get("delta") or choice.get("message") or {}).get("tool_calls") or ():
            key = call.get("index", call.get("id"))
            found[key] = found.get(key, "") + (call["function"].get("arguments") or "")
    for place, block in enumerate(event.get("content") or ()):
        if block["type"] == "tool_use":
            found[place] = json.dumps(block["input"])
    if (delta := event.get("delta")) and isinstance(delta, dict) and delta.get("type") == "input_json_delta":
        found[event["index"]] = found.get(event["index"], "") + delta["partial_json"]
    items = [event.get("item")] if event.get("type") == "response.output_item.done" else event.get("output") or ()
    for item in items:
        if item["type"] == "function_call":
            found[item["call_id"]] = item["arguments"]


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("mode", FINAL)
@pytest.mark.parametrize("grammar", GRAMMARS)
async def test_the_one_call_comes_out_sound_whatever_the_engine_made_of_it(
    grammar: str, mode: str, stream: bool
) -> None:
    judged: list[Any] = []
    raw = mode.endswith("raw")
    apps = {
        ("m", "speculative"): _first(grammar, mode, stream),
        ("m", "standard"): saying(stream, "I write.", _call(SOUND)),
    }
    async with running(_config(grammar, raw), apps, sink=judged.append) as stack:
        for api in PATHS:
            judged.clear()
            text = await asked(stack, api, request_to(api, "Write it.", stream))
            assert _calls(text) == [ARGUMENTS], (api, text)
            assert judged[-1].final is FINAL[mode], (api, judged)


@pytest.mark.parametrize("stream", [True, False], ids=["streamed", "whole"])
@pytest.mark.parametrize("grammar", WRITTEN)
async def test_a_leak_of_any_format_is_no_answer_in_a_pool_whose_grammar_nobody_knows(
    grammar: str, stream: bool
) -> None:
    apps = {
        ("m", "speculative"): _first(grammar, "leaking", stream),
        ("m", "standard"): saying(stream, "I write.", _call(SOUND)),
    }
    async with running(_config("none", raw=False), apps) as stack:
        assert _calls(await asked(stack, "chat", request_to("chat", "Write it.", stream))) == [ARGUMENTS]


def test_every_grammar_has_its_call_here() -> None:
    assert WRITTEN.keys() >= GRAMMARS.keys()
