"""The conversation of a Messages request, as chat messages."""

from collections.abc import Mapping
from itertools import groupby
from typing import Any

import msgspec

from serve.dialects.body import wrong
from serve.dialects.chat import MISSING_RESULT, text_part
from serve.dialects.messages.blocks import Block, Part, blocks_of, content_of, inner_parts, parts_of
from serve.dialects.messages.memo import engine_id
from serve.dialects.messages.tool_changes import TOOL_CHANGES
from serve.dialects.reasoning import unseal
from serve.dialects.unreadable import Unreadable

ChatMessage = dict[str, Any]

# Changes with every request of Claude-Code-like clients, and would cost the prefix cache.
_BILLING = "x-anthropic-billing-header"


def system_text(system: Any, where: str = "system") -> str:
    """Returns the text of a system prompt.

    Raises:
        InvalidRequestError: It is neither text nor a list of text blocks.
    """
    texts = []
    for position, block in enumerate(blocks_of(system, where)):
        if block["type"] != "text" or not isinstance(block.get("text"), str):
            raise wrong(f"{where}.{position}", "must be a block of text")
        if block["text"] and not block["text"].startswith(_BILLING):
            texts.append(block["text"])
    return "\n\n".join(texts)


def chat_messages(body: Mapping[str, Any], given: list[Any], dropped: list[str]) -> list[ChatMessage]:
    """Returns the chat messages of a request.

    Turns of one side that follow one another become one, because most chat templates want the sides to alternate.

    Args:
        body: The request.
        given: Its `messages`.
        dropped: Gets the names of what is left out.

    Raises:
        InvalidRequestError: A message can't be translated.
    """
    system = [] if body.get("system") is None else [system_text(body["system"])]
    turns = [_turn(message, f"messages.{position}") for position, message in enumerate(_lasting(given))]
    turns = [(role, blocks) for role, blocks in turns if blocks or role != "system"]  # such a one changes options only
    leading = next((position for position, (role, _) in enumerate(turns) if role != "system"), len(turns))
    system += [system_text([block for _, block in blocks], "messages") for _, blocks in turns[:leading]]
    text = "\n\n".join(filter(None, system))
    messages: list[ChatMessage] = [{"role": "system", "content": text}] if text else []
    unreadable = Unreadable(_asked(turns), dropped)
    pending: list[str] = []
    # A later system message becomes the user's: templates refuse it in its own role, and moved to the front
    # it would change the prefix that engines have in their cache.
    for assistant, run in groupby(turns[leading:], lambda turn: turn[0] == "assistant"):
        blocks = [block for _, blocks in run for block in blocks]
        if assistant:
            message = _assistant(blocks, unreadable)
            pending = [call["id"] for call in message.get("tool_calls", ())]
            messages.append(message)
        else:
            messages += _user(blocks, pending, unreadable)
            pending = []
    messages += _results(pending, {})
    return messages


def _asked(turns: list[tuple[str, list[tuple[str, Block]]]]) -> str:
    """Returns the place of what the user says now; none if the last message brings results, as agents' do."""
    role, blocks = next((turn for turn in reversed(turns) if turn[0] != "system"), ("", []))
    if role != "user" or not blocks or any([block["type"] == "tool_result" for _, block in blocks]):
        return ""
    return blocks[0][0].removesuffix("0")


def _lasting(given: list[Any]) -> list[Any]:
    """Returns the messages without those of the system that end with the user's next one, if that has come."""
    last_user = max((position for position, message in enumerate(given) if _is_users(message)), default=0)
    return [message for position, message in enumerate(given) if position > last_user or not _is_passing(message)]


def _is_users(message: Any) -> bool:
    return isinstance(message, dict) and message.get("role") == "user"


def _is_passing(message: Any) -> bool:
    return isinstance(message, dict) and message.get("clear_at") == "next_user_message"


def _turn(message: Any, where: str) -> tuple[str, list[tuple[str, Block]]]:
    """Returns a message's role and its blocks, each with its place."""
    if not isinstance(message, dict):
        raise wrong(where, "must be an object")
    role = message.get("role")
    role = "system" if role == "developer" else role
    if role not in ("user", "assistant", "system"):
        raise wrong(f"{where}.role", "must be user, assistant or system")
    if "content" not in message and role != "system":
        raise wrong(f"{where}.content", "Field required")
    content = message.get("content", "")
    content = "" if content is None and role == "assistant" else content  # of a turn that a client has lost
    blocks = blocks_of(content, f"{where}.content")
    if role == "assistant" and blocks and all([block["type"] == "compaction" for block in blocks]):
        role = "user"  # a summary in place of the conversation before: templates want it to begin with a user
    placed = [(f"{where}.content.{position}", block) for position, block in enumerate(blocks)]
    return role, placed if role != "system" else [each for each in placed if not _changes_options(each[1])]


def _changes_options(block: Block) -> bool:
    return block["type"] in TOOL_CHANGES or block == {"type": "text", "text": ""}


def _assistant(blocks: list[tuple[str, Block]], unreadable: Unreadable) -> ChatMessage:
    texts: list[str] = []
    thoughts: list[str] = []
    calls: list[dict[str, Any]] = []
    for where, block in blocks:
        kind = block["type"]
        if kind in ("text", "compaction"):
            texts += [part["text"] for part in parts_of(block, where, unreadable)]
        elif kind == "thinking":
            shown = block.get("thinking")
            thoughts.append(shown if isinstance(shown, str) and shown else unseal(block.get("signature")) or "")
        elif kind == "tool_use":
            calls.append(_chat_call(block, where))
        elif kind != "redacted_thinking":
            unreadable.dropped.append(f"messages.{kind}")
    message: ChatMessage = {"role": "assistant", "content": "".join(texts) or (None if calls else "")}
    if reasoning := "".join(thoughts):
        message["reasoning"] = reasoning
    if calls:
        message["tool_calls"] = calls
    return message


def _chat_call(block: Block, where: str) -> dict[str, Any]:
    call_id, name = block.get("id"), block.get("name")
    if not isinstance(call_id, str) or not isinstance(name, str):
        raise wrong(where, "a tool_use needs an `id` and a `name`")
    given = block.get("input") or {}
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return {"id": engine_id(call_id), "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(blocks: list[tuple[str, Block]], pending: list[str], unreadable: Unreadable) -> list[ChatMessage]:
    """Returns the results of the calls before, in the order of the calls, and then whatever else the user says."""
    places: dict[str, list[int]] = {}
    for place, call_id in enumerate(pending):
        places.setdefault(call_id, []).append(place)
    results: dict[int, list[Part]] = {}  # by the place of their call
    images: list[Part] = []
    rest: list[Part] = []
    for where, block in blocks:
        if block["type"] != "tool_result":
            rest += parts_of(block, where, unreadable)
            continue
        given = block.get("tool_use_id")
        if not isinstance(given, str):
            raise wrong(f"{where}.tool_use_id", "Field required")
        call_id = engine_id(given)
        parts = _result_parts(block, where, unreadable)
        if waiting := places.get(call_id):  # of several results of one call the last counts
            results[waiting.pop(0) if len(waiting) > 1 else waiting[0]] = parts
        else:
            rest += [text_part(f"Result of the tool call {call_id}:"), *parts]
    for place, parts in results.items():
        pictures = [part for part in parts if part["type"] != "text"]
        if pictures:
            images += [text_part(f"Images in the result of the tool call {pending[place]}:"), *pictures]
    messages = _results(pending, results)
    if images or rest or not messages:
        messages.append({"role": "user", "content": content_of([*images, *rest])})
    return messages


def _results(pending: list[str], results: Mapping[int, list[Part]]) -> list[ChatMessage]:
    return [
        {"role": "tool", "tool_call_id": call_id, "content": _result_text(call_id, results.get(place))}
        for place, call_id in enumerate(pending)
    ]


def _result_text(call_id: str, parts: list[Part] | None) -> str:
    if parts is None:
        return MISSING_RESULT
    texts = [part["text"] for part in parts if part["type"] == "text"]
    if len(texts) < len(parts):
        texts.append(f"(The images in the result of {call_id} follow in the next message.)")
    return "\n".join(texts)


def _result_parts(block: Block, where: str, unreadable: Unreadable) -> list[Part]:
    content = block.get("content")
    parts = [] if content is None else inner_parts(content, f"{where}.content", unreadable)
    if block.get("is_error") is not True:
        return parts
    if parts and parts[0]["type"] == "text":
        text = parts[0]["text"]
        return parts if text.startswith("Error") else [text_part(f"Error: {text}"), *parts[1:]]
    return [text_part("Error: the tool failed."), *parts]
