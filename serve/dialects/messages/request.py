"""A Messages request to a chat request."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

import msgspec

from serve.dialects.answer import estimated_tokens, mapping
from serve.dialects.body import read_object, required, within_depth, written, wrong
from serve.dialects.chat import STREAMED, taken_ids
from serve.dialects.count_tokens import counted
from serve.dialects.dialect import Translated
from serve.dialects.messages.conversation import chat_messages
from serve.dialects.messages.tools import chat_tools, offers_toolset, tools_in_effect
from serve.errors import InvalidRequestError

# Fields that chat has under the same or another name.
_RENAMED = {
    "max_tokens": "max_tokens",
    "temperature": "temperature",
    "top_p": "top_p",
    "top_k": "top_k",
    "stop_sequences": "stop",
    "enable_speculative": "enable_speculative",
    "chat_template_kwargs": "chat_template_kwargs",
}
# Fields that are read below, and those that are meant for Anthropic's cache or books and say nothing about the answer.
_READ = frozenset(
    {"model", "messages", "system", "stream", "tools", "tool_choice", "thinking", "output_config", "output_format"}
)
_HEEDED = {"thinking": frozenset({"type", "display"}), "output_config": frozenset({"effort", "format"})}
_SILENT = frozenset({"metadata", "cache_control"})
# On this code Anthropic's SDKs send the whole conversation again.
THREAD_NOT_FOUND = "thread_not_found"
_SESSION_MARK = "_session_"


@dataclass(frozen=True, slots=True)
class MessagesMemo:
    """What the answer to a request must know of it.

    Attributes:
        prompt_tokens: An estimate of the prompt's.
        thinking: True if the client enabled thinking: only such a one expects blocks of it.
        omitted: True if it wants those blocks without their text.
        max_tokens: The length that the answer may have; 0 if that is not known.
        taken_ids: Ids of the calls in the conversation so far.
        toolset: True if the tools for a computer are a toolset.
    """

    prompt_tokens: int
    thinking: bool = False
    omitted: bool = False
    max_tokens: int = 0
    taken_ids: frozenset[str] = frozenset()
    toolset: bool = False


@within_depth()
def decode(body: bytes) -> Translated:
    """Translates a body of `POST /v1/messages`.

    Raises:
        InvalidRequestError: The body is no such request, or asks for something that chat can't do.
    """
    request = read_object(body)
    limit = required(request, "max_tokens", int, "an integer")
    if limit < 1:
        raise wrong("max_tokens", "must be at least 1")
    dropped: list[str] = []
    chat = chat_body(request, dropped)
    stream = request.get("stream")
    if stream is not None and not isinstance(stream, bool):
        raise wrong("stream", "must be true or false")
    if stream:
        chat |= STREAMED
    if session := _session(request):
        chat["prompt_cache_key"] = session
    encoded = written(chat, len(body))
    thinking = mapping(request.get("thinking"))
    memo = MessagesMemo(
        prompt_tokens=estimated_tokens(chat["messages"], len(encoded)),
        thinking=thinking.get("type", "disabled") != "disabled",
        omitted=thinking.get("display") == "omitted",
        max_tokens=limit,
        taken_ids=taken_ids(chat["messages"]),
        toolset=offers_toolset(tools_in_effect(request, request.get("tools") or [])),
    )
    return Translated(encoded, bool(stream), memo, tuple(dropped), chat["model"], limit)


@within_depth()
def decode_count(body: bytes) -> Translated:
    """Translates a body of `POST /v1/messages/count_tokens`.

    Raises:
        InvalidRequestError: The body can't be translated.
    """
    dropped: list[str] = []
    chat = chat_body(read_object(body), dropped)
    encoded = counted(chat, len(body))
    return Translated(encoded, False, MessagesMemo(estimated_tokens(chat["messages"], len(encoded))), tuple(dropped))


def chat_body(request: Mapping[str, Any], dropped: list[str]) -> dict[str, Any]:
    """Returns the chat body of a request, without what concerns its stream. `dropped` gets the names of what is left
    out.

    Raises:
        InvalidRequestError: The request can't be translated.
    """
    fields = dict(request)
    chat: dict[str, Any] = {"model": required(fields, "model", str, "a string")}
    _refuse(fields)
    given = required(fields, "messages", list, "a list")
    if not given:
        raise wrong("messages", "at least one message is required")
    chat["messages"] = chat_messages(fields, given, dropped)
    chat |= {new: fields[name] for name, new in _RENAMED.items() if fields.get(name) is not None}
    chat |= chat_tools(fields, dropped)
    chat |= _thinking(fields)
    chat |= _output(mapping(fields.get("output_config")), fields.get("output_format"))
    dropped += _unheeded(fields)
    if (begun := chat["messages"][-1])["role"] == "assistant":
        if begun["content"].strip():  # the client has begun the answer
            chat |= {"continue_final_message": True, "add_generation_prompt": False}
        elif len(chat["messages"]) > 1:  # continued, nothing would be the turn before it
            chat["messages"].pop()
    dropped += [name for name in fields if name not in _RENAMED and name not in _READ and name not in _SILENT]
    return chat


def _refuse(request: Mapping[str, Any]) -> None:
    """Refuses what needs a store: without it, a request would be answered as if the conversation began with it."""
    if mapping(request.get("thread")).get("type") == "continue":
        message = "thread: no conversation is stored here. Send all of it, with a `thread` of type create or without."
        raise InvalidRequestError(message, param="thread", code=THREAD_NOT_FOUND)
    if request.get("compaction") is not None:
        raise wrong("compaction", "is not done here; ask for a summary in a message")


def _unheeded(request: Mapping[str, Any]) -> list[str]:
    """Returns the members within fields that have no effect: engines take a budget only if they were started for it."""
    return [
        f"{name}.{member}"
        for name, heeded in _HEEDED.items()
        for member, value in mapping(request.get(name)).items()
        if member not in heeded and value is not None
    ]


def _thinking(request: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the switch of thinking; without one, and with any other than these two, the model decides."""
    thinking = request.get("thinking")
    if thinking is None:
        return {}
    kind = mapping(thinking).get("type")
    if not isinstance(kind, str):
        raise wrong("thinking", "must be an object with a `type`, such as enabled, adaptive or disabled")
    if kind not in ("enabled", "disabled"):
        return {}
    on = kind == "enabled"
    # Templates have either name.
    return {
        "chat_template_kwargs": {**mapping(request.get("chat_template_kwargs")), "thinking": on, "enable_thinking": on}
    }


def _output(config: Mapping[str, Any], former_format: Any) -> dict[str, Any]:
    """Returns what says how to answer; `output_format` is what older clients send for `output_config.format`."""
    members: dict[str, Any] = {}
    if isinstance(effort := config.get("effort"), str):
        members["reasoning_effort"] = effort
    form = mapping(config.get("format") or former_format)
    if form.get("type") == "json_schema":
        if not isinstance(form.get("schema"), dict):
            raise wrong("output_config.format.schema", "must be an object")
        schema = {"name": "output", "schema": form["schema"], "strict": True}
        members["response_format"] = {"type": "json_schema", "json_schema": schema}
    elif form:
        raise wrong("output_config.format", "must be of type json_schema")
    return members


def _session(request: Mapping[str, Any]) -> str | None:
    """Returns the name of the conversation, if the client gives it one within the name of its user."""
    user = mapping(request.get("metadata")).get("user_id")
    if not isinstance(user, str):
        return None
    if user.startswith("{"):
        try:
            named = mapping(msgspec.json.decode(user)).get("session_id")
        except (msgspec.DecodeError, RecursionError):
            return None
        return named if isinstance(named, str) else None
    return user if _SESSION_MARK in user else None
