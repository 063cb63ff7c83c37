"""Blocks of user and tool content, as parts of chat messages."""

from collections.abc import Callable, Mapping
from typing import Any

from serve.dialects.body import wrong
from serve.dialects.chat import text_part
from serve.dialects.unreadable import Unreadable, text_of

Part = dict[str, Any]
Block = Mapping[str, Any]


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

    Args:
        block: From `blocks_of`.
        where: Its place.
        unreadable: Decides about a block that chat has nothing for.

    Raises:
        InvalidRequestError: The block is malformed, or the user asks now about one that can't be read.
    """
    kind = block["type"]
    read = _READERS.get(kind)
    if read is None:
        known = ", ".join(f"'{kind}'" for kind in (*_READERS, "tool_result"))
        tag = f"Input tag '{kind}' found using 'type' does not match any of the expected tags: {known}"
        return [unreadable.note(where, f"messages.{kind}", f"A block of type {kind}", wrong(where, tag))]
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
    title = block.get("title")
    head = [text_part(f"Document: {title}")] if isinstance(title, str) and title else []
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
