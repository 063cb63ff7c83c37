"""Plans a simulated model's answer: calls, a JSON document or prose, always the same for the same request."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping
from random import Random
from typing import Any

from lab.sim.schema_instance import instance_of
from lab.sim.segments import PlannedAnswer, PlannedCall
from lab.sim.settings import SimSettings
from serve.errors import InvalidRequestError

SENTENCES = (
    "Let me look at that first. ",
    "好的，我先检查依赖环境。",
    "The value is 3.14, not 2.71. ",
    "🚀 Ready to go! ",
    "次に、ログを確認します。",
    "Nothing else depends on it. ",
    "如果失败，请重试。",
    "Here is `code` and a list:\n- one\n- two\n",
    "Ça marche très bien. ",
)
ECHO_TOOL = "echo"
"""The tool that is called with what the prompt's last line holds, as a model would that was asked to copy it."""
OFF = (0, "0", False)
"""Values of `vllm_xargs.enable_speculative` that switch speculation off."""
TRANSPORT_FIELDS = (
    "stream", "stream_options", "vllm_xargs", "request_id",
    "return_token_ids", "return_tokens_as_token_ids", "logprobs", "top_logprobs",
)  # fmt: skip
"""Fields that change how an answer is sent, but not its text."""


def random_of(body: Mapping[str, Any], *salts: object) -> Random:
    """Returns a random generator seeded by the request's content and the salts."""
    content = {key: value for key, value in body.items() if key not in TRANSPORT_FIELDS}
    digest = hashlib.sha256(json.dumps(content, sort_keys=True).encode()).hexdigest()
    return Random(f"{salts}:{digest}")


def answer_to(body: Mapping[str, Any], settings: SimSettings, rng: Random) -> PlannedAnswer:
    """Returns the answer to a chat request.

    Args:
        body: The request.
        settings: The simulated engine's settings.
        rng: Decides everything that is left to chance.

    Raises:
        InvalidRequestError: `tool_choice` names no tool of the request.
        NoInstanceError: A schema is beyond the generator.
    """
    reasoning = _prose(rng, settings) if thinks(body, settings) else ""
    told = asked_to_copy(body)
    if schema := _document_schema(body):
        document = told["document"] if isinstance(told, dict) and "document" in told else instance_of(schema, rng)
        return PlannedAnswer(reasoning, json_text=json.dumps(document, ensure_ascii=False))
    if isinstance(told, dict) and isinstance(told.get("text"), str):
        return PlannedAnswer(reasoning, told["text"])
    calls = _calls(body, settings, rng)
    if not calls:
        return PlannedAnswer(reasoning, _prose(rng, settings))
    return PlannedAnswer(reasoning, _prose(rng, settings) if rng.random() < 0.3 else "", calls=calls)


def calls_before(body: Mapping[str, Any]) -> int:
    """Returns the number of calls in earlier turns of the conversation."""
    messages = [message for message in body.get("messages", ()) if isinstance(message, Mapping)]
    return sum(len(message.get("tool_calls") or ()) for message in messages)


def _prose(rng: Random, settings: SimSettings) -> str:
    low, high = settings.content_tokens
    length = 4 * rng.randint(low, high)  # about four characters per token
    text = rng.choice(SENTENCES)
    while len(text) < length:
        text += rng.choice(SENTENCES)
    return text.strip()


def thinks(body: Mapping[str, Any], settings: SimSettings) -> bool:
    """Returns True if the answer begins with reasoning."""
    switches = body.get("chat_template_kwargs") or {}
    return bool(switches.get("thinking", switches.get("enable_thinking", settings.thinking)))


def acceptance_class(body: Mapping[str, Any], settings: SimSettings) -> str:
    """Returns the kind of text that a drafter has to guess: one of `ACCEPTANCE_CLASSES`."""
    if thinks(body, settings):
        return "thinking"
    if _document_schema(body) is not None:
        return "json"
    return "tools" if body.get("tools") and body.get("tool_choice") != "none" else "prose"


def _document_schema(body: Mapping[str, Any]) -> Mapping[str, Any] | None:
    form = body.get("response_format") or {}
    if form.get("type") == "json_object":
        return {"type": "object", "properties": {"answer": {"type": "string"}, "count": {"type": "integer"}},
                "required": ["answer", "count"]}  # fmt: skip
    if form.get("type") == "json_schema":
        return (form.get("json_schema") or {}).get("schema") or {"type": "object"}
    return None


def _calls(body: Mapping[str, Any], settings: SimSettings, rng: Random) -> tuple[PlannedCall, ...]:
    tools = [tool["function"] for tool in body.get("tools") or () if "function" in tool]
    choice = body.get("tool_choice") or ("auto" if tools else "none")
    if choice == "none" or (choice == "auto" and not _wants_calls(body, settings, rng)):
        return ()
    named = choice["function"]["name"] if isinstance(choice, Mapping) else None
    allowed = [tool for tool in tools if named in (None, tool["name"])]
    if not allowed:
        raise InvalidRequestError("The tool_choice names no tool of this request.", param="tool_choice")
    told = asked_to_copy(body)
    if named == ECHO_TOOL and isinstance(told, list):
        drafts = settings.num_speculative_tokens > 0 and not opted_out(body)
        return (PlannedCall(named, {"values": [_copied(value, settings.slips * drafts, rng) for value in told]}),)
    if isinstance(told, dict) and isinstance(told.get("calls"), list):
        return tuple(PlannedCall(call["name"], call["arguments"]) for call in told["calls"])
    single = named is not None or body.get("parallel_tool_calls") is False
    chosen = [rng.choice(allowed) for _ in range(1 if single else rng.randint(1, settings.max_calls))]
    return tuple(
        PlannedCall(tool["name"], instance_of(tool.get("parameters") or {"type": "object"}, rng)) for tool in chosen
    )


def opted_out(body: Mapping[str, Any]) -> bool:
    """Returns True if the request switches speculation off."""
    return (body.get("vllm_xargs") or {}).get("enable_speculative", 1) in OFF


def asked_to_copy(body: Mapping[str, Any]) -> Any:
    """Returns what a prompt asks to copy, which is the JSON of its last line; None if that is none.

    A list is for the tool `echo`. An object has `calls`, each with a name and arguments, or a `document`, or a `text`.
    """
    last = (body.get("messages") or [{}])[-1].get("content")
    try:
        return json.loads(str(last).rpartition("\n")[2])
    except (ValueError, RecursionError):
        return None


def _copied(value: Any, slips: float, rng: Random) -> Any:
    """Returns a value as it is, or a text with one slip."""
    if rng.random() >= slips or not value or not isinstance(value, str):
        return value
    place = rng.randrange(len(value))
    return value[:place] + rng.choice([sign for sign in "aek379" if sign != value[place]]) + value[place + 1 :]


def _wants_calls(body: Mapping[str, Any], settings: SimSettings, rng: Random) -> bool:
    """Returns True if an `auto` request gets calls; a tool's result gets prose, so that agents' loops end."""
    last = (body.get("messages") or [{}])[-1]
    return last.get("role") != "tool" and rng.random() < settings.call_rate
