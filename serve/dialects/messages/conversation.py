"""The conversation of a Messages request, as chat messages: its turns, their blocks, the ids of their calls."""

import binascii
import re
from base64 import urlsafe_b64decode, urlsafe_b64encode
from collections.abc import Callable, Mapping
from itertools import groupby
from typing import Any

import msgspec

from serve.dialects.body import wrong
from serve.dialects.chat import MISSING_RESULT, Unreadable, chat_role, text_of, text_part
from serve.dialects.messages.tools import TOOL_CHANGES
from serve.dialects.sealed_reasoning import unseal

ChatMessage = dict[str, Any]
Part = dict[str, Any]
Block = Mapping[str, Any]
_Placed = tuple[str, Block]  # with its place in the request
_Turn = tuple[str, list[_Placed]]  # a role and what it says

# Changes with every request of Claude-Code-like clients, and would cost the prefix cache.
_BILLING = "x-anthropic-billing-header"
_PLAIN_ID = re.compile(r"[A-Za-z0-9_-]{1,256}")
_FAILED = "Error:"  # begins the result of a tool that failed
_CODED = "toolu_sg_"
_HOSTED_CALLS = frozenset({"server_tool_use", "mcp_tool_use"})  # of tools that ran at another provider


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
    `dropped` gets the names of what is left out.

    Raises:
        InvalidRequestError: A message can't be translated.
    """
    system = [] if body.get("system") is None else [system_text(body["system"])]
    turns = [_turn(message, f"messages.{position}") for position, message in enumerate(_lasting(given))]
    turns = [(role, blocks) for role, blocks in turns if blocks or role != "system"]  # such a one changes options only
    begun: list[_Turn] = []
    for role, blocks in turns:
        side = chat_role(role, begun=bool(begun))
        if side == "system":
            system.append(system_text([block for _, block in blocks], "messages"))
        else:
            begun.append((side, blocks))
    text = "\n\n".join(filter(None, system))
    messages: list[ChatMessage] = [{"role": "system", "content": text}] if text else []
    unreadable = Unreadable(_asked(turns), dropped)
    pending: list[str] = []
    for assistant, run in groupby(begun, lambda turn: turn[0] == "assistant"):
        blocks = [block for _, blocks in run for block in blocks]
        if assistant:
            messages += _assistant(blocks, unreadable)
            pending = [call["id"] for call in messages[-1].get("tool_calls", ())]
        else:
            messages += _user(blocks, pending, unreadable)
            pending = []
    messages += _results(pending, {})
    return messages


def _asked(turns: list[_Turn]) -> str:
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


def _turn(message: Any, where: str) -> _Turn:
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


def _assistant(blocks: list[_Placed], unreadable: Unreadable) -> list[ChatMessage]:
    """Returns the messages of a turn: one, and one more, with its result, for each call that ran at the provider.

    What follows such a call was said with its result in view. Calls that the client runs come last, before theirs.
    """
    results = {answered: placed for placed in blocks if (answered := _hosted_result_of(placed[1]))}
    messages: list[ChatMessage] = []
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
        elif kind in _HOSTED_CALLS and (result := results.pop(str(block.get("id")), None)) is not None:
            server = block.get("server_name")
            name = f"{server}__{block.get('name')}" if isinstance(server, str) else block.get("name")
            call = _chat_call({**block, "name": name}, where)
            messages.append(_turn_of(texts, thoughts, [call]))
            messages += _results([call["id"]], {0: _hosted_parts(*result, unreadable)})
            texts, thoughts = [], []
        elif kind != "redacted_thinking" and ((call_id := _hosted_result_of(block)) in results or not call_id):
            unreadable.dropped.append(f"messages.{kind}")
    if texts or thoughts or calls or not messages:
        messages.append(_turn_of(texts, thoughts, calls))
    return messages


def _hosted_result_of(block: Block) -> str:
    """Returns the id of the call that ran at the provider and has its result here; empty for any other block."""
    call_id = block.get("tool_use_id")
    return call_id if block["type"].endswith("_tool_result") and isinstance(call_id, str) else ""


def _hosted_parts(where: str, block: Block, unreadable: Unreadable) -> list[Part]:
    """Returns the result of a tool that ran at the provider, without what only the provider can read."""
    content = block.get("content")
    if block["type"] == "mcp_tool_result":
        return _result_parts(block, where, unreadable)
    if isinstance(content, dict) and isinstance(page := content.get("content"), dict):
        return [text_part(f"{content.get('url')}:"), *inner_parts([page], where, unreadable)]
    if isinstance(content, list):
        found = [each for each in content if isinstance(each, dict)]
        content = [{key: value for key, value in each.items() if not key.startswith("encrypted_")} for each in found]
    return [text_part(msgspec.json.encode(content).decode())]


def _turn_of(texts: list[str], thoughts: list[str], calls: list[dict[str, Any]]) -> ChatMessage:
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
    if isinstance(toolset := block.get("toolset_name"), str) and isinstance(given, dict):
        name, given = toolset, {"action": name, **given}
    arguments = given if isinstance(given, str) else msgspec.json.encode(given).decode()
    return {"id": engine_id(call_id), "type": "function", "function": {"name": name, "arguments": arguments}}


def _user(blocks: list[_Placed], pending: list[str], unreadable: Unreadable) -> list[ChatMessage]:
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
        return parts if text.startswith(_FAILED) else [text_part(f"{_FAILED} {text}"), *parts[1:]]
    return [text_part(f"{_FAILED} the tool failed."), *parts]


def blocks_of(content: Any, where: str) -> list[Block]:
    """Returns a message's content as blocks.

    Raises:
        InvalidRequestError: It is neither text nor a list of blocks.
    """
    if isinstance(content, str):
        return [{"type": "text", "text": content}]
    if not isinstance(content, list):
        raise wrong(where, "must be a string or a list of blocks")
    for position, block in enumerate(content):
        if not isinstance(block, dict) or not isinstance(block.get("type"), str):
            raise wrong(f"{where}.{position}", "must be an object with a `type`")
    return content


def parts_of(block: Block, where: str, unreadable: Unreadable) -> list[Part]:
    """Returns what a block of a user's message or of a tool's result is in chat; nothing for empty text.

    Raises:
        InvalidRequestError: The block is malformed, or the user asks now about one that can't be read.
    """
    kind = block["type"]
    read = _READERS.get(kind)
    if read is None:
        known = ", ".join(f"'{kind}'" for kind in (*_READERS, "tool_result"))
        tag = f"Input tag '{kind}' found using 'type' does not match any of the expected tags: {known}"
        return [unreadable.note(where, f"messages.{kind}", f"A block of type {kind}", wrong(where, tag))]
    if isinstance(citations := block.get("citations"), dict) and citations.get("enabled"):
        unreadable.dropped.append("messages.citations")
    return read(block, where, unreadable)


def inner_parts(content: Any, where: str, unreadable: Unreadable) -> list[Part]:
    """Returns what the content of a block is in chat; arguments and errors are those of `parts_of`."""
    blocks = blocks_of(content, where)
    return [
        part for position, block in enumerate(blocks) for part in parts_of(block, f"{where}.{position}", unreadable)
    ]


def content_of(parts: list[Part]) -> str | list[Part]:
    """Returns parts as the content of a chat message: as plain text if they hold nothing else, for every template."""
    if all([part["type"] == "text" for part in parts]):
        return "\n\n".join([part["text"] for part in parts])
    return parts


def _text(block: Block, where: str, _: Unreadable) -> list[Part]:
    text = block.get("text")
    if not isinstance(text, str):
        raise wrong(f"{where}.text", "Field required" if text is None else "must be a string")
    return [text_part(text)] if text else []


def _image(block: Block, where: str, unreadable: Unreadable) -> list[Part]:
    source = _source(block)
    if source.get("type") == "url" and isinstance(source.get("url"), str):
        url = source["url"]
    elif isinstance(source.get("data"), str) and isinstance(source.get("media_type"), str):
        url = f"data:{source['media_type']};base64,{source['data']}"
    else:
        error = wrong(f"{where}.source", "must be of type base64 or url; files are not kept here")
        return [unreadable.note(where, "messages.image", "An image", error)]
    return [{"type": "image_url", "image_url": {"url": url}}]


def _document(block: Block, where: str, unreadable: Unreadable) -> list[Part]:
    source = _source(block)
    told = (("Document", block.get("title")), ("About the document", block.get("context")))
    head = [text_part(f"{what}: {text}") for what, text in told if isinstance(text, str) and text]
    kind, data = source.get("type"), source.get("data")
    if kind == "content":
        return head + inner_parts(source.get("content"), f"{where}.source.content", unreadable)
    text = data if kind == "text" and isinstance(data, str) else text_of(source.get("media_type"), data)
    if text is not None:
        return [*head, text_part(text)]
    media_type = source.get("media_type") or kind or "unknown"
    reply = wrong(where, f"a document of type {media_type} can't be read here; send its text, or its pages as images")
    return [*head, unreadable.note(where, "messages.document", f"A document of type {media_type}", reply)]


def _search_result(block: Block, where: str, unreadable: Unreadable) -> list[Part]:
    named = [value for value in (block.get("title"), block.get("source")) if isinstance(value, str) and value]
    head = [text_part("Search result: " + ", ".join(named))] if named else []
    return head + inner_parts(block.get("content"), f"{where}.content", unreadable)


def _tool_reference(block: Block, where: str, _: Unreadable) -> list[Part]:
    name = block.get("tool_name")
    return [text_part(f"Tool: {name}")] if isinstance(name, str) else []


def _compaction(block: Block, where: str, _: Unreadable) -> list[Part]:
    """Returns the summary that a provider has put in place of earlier turns."""
    summary = block.get("content")
    return [text_part(f"Summary of the conversation so far:\n{summary}\n")] if isinstance(summary, str) else []


def _source(block: Block) -> Mapping[str, Any]:
    source = block.get("source")
    return source if isinstance(source, dict) else {}


_READERS: dict[str, Callable[[Block, str, Unreadable], list[Part]]] = {
    "text": _text,
    "image": _image,
    "document": _document,
    "search_result": _search_result,
    "tool_reference": _tool_reference,
    "compaction": _compaction,
}


def client_id(call_id: str) -> str:
    """Returns a call's id as clients accept it: Kimi's `functions.NAME:0` holds what they refuse."""
    if _PLAIN_ID.fullmatch(call_id) and not call_id.startswith(_CODED):
        return call_id
    return _CODED + urlsafe_b64encode(call_id.encode("utf-8", "replace")).rstrip(b"=").decode()


def engine_id(given: str) -> str:
    """Returns the id that `client_id` was given; any other id as it is."""
    if not given.startswith(_CODED):
        return given
    coded = given[len(_CODED) :]
    try:
        return urlsafe_b64decode(coded + "=" * (-len(coded) % 4)).decode()
    except (binascii.Error, ValueError):
        return given
