"""The contents of a Responses request's items, as text and as the parts of a chat message."""

from collections.abc import Callable, Mapping, Sequence
from typing import Any

from serve.dialects.chat import text_part
from serve.dialects.reasoning import unseal
from serve.dialects.unreadable import Unreadable, text_of
from serve.errors import InvalidRequestError

_CIPHERTEXT = "gAAAA"  # begins OpenAI's
_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a chat message's content as a list of parts."""
    return [text_part(content)] if isinstance(content, str) else content


def joined_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts among the parts of a chat message, a line each."""
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def parts_of(content: Any, param: str, unreadable: Unreadable) -> list[dict[str, Any]]:
    """Returns an item's content as the parts of a chat message.

    Args:
        content: A string or a list of parts; null is empty.
        param: Its place in the request.
        unreadable: Decides about a part that chat has nothing for.

    Raises:
        InvalidRequestError: The content has no known shape, or the user asks now about a part that can't be read.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [text_part(content)]
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"`{param}` must be a string or a list of parts.", param=param)
    return [_part(part, f"{param}[{index}]", unreadable) for index, part in enumerate(content)]


def _part(part: Any, param: str, unreadable: Unreadable) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    if not isinstance(part, Mapping) or not isinstance(part.get("type"), str):
        raise InvalidRequestError(f"`{param}` must be an object with a `type`.", param=param)
    kind = part["type"]
    if kind in _TEXTS:
        return text_part(str(part.get("text") or ""))
    if kind == "refusal":
        return text_part(str(part.get("refusal") or ""))
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    read = _READERS.get(kind)
    if read is not None and (readable := read(part)) is not None:
        return readable
    what, remedy = _UNREADABLE.get(kind, (f"A part of type {kind}", f"known types: {', '.join(_KNOWN)}"))
    name = part.get("filename")
    what += f" ({name})" if isinstance(name, str) else ""
    error = InvalidRequestError(
        f"`{param}`: {what} like this can't be read here; {remedy}.", param=param, code="unsupported_content"
    )
    return unreadable.note(param, f"input.{kind}", what, error)


def _image(part: Mapping[str, Any]) -> dict[str, Any] | None:
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        return None
    detail = part.get("detail")
    # `original` and what else may come is not in chat's vocabulary.
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail in ("low", "high") else {})}


def _file(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns a file's text; no other files can be read here."""
    data = part.get("file_data")
    head, comma, encoded = data.partition(",") if isinstance(data, str) else ("", "", "")
    if not comma or not head.startswith("data:") or not head.endswith(";base64"):
        return None
    text = text_of(head.removeprefix("data:").removesuffix(";base64"), encoded)
    return None if text is None else text_part(f"{part.get('filename') or 'file'}:\n{text}")


def _sealed(part: Mapping[str, Any]) -> dict[str, Any] | None:
    """Returns what one agent of Codex tells another: a call's argument, which only OpenAI's models encrypt."""
    text = part.get("encrypted_content")
    return text_part(text) if isinstance(text, str) and not text.startswith(_CIPHERTEXT) else None


_READERS: dict[str, Callable[[Mapping[str, Any]], dict[str, Any] | None]] = {
    "input_image": _image,
    "image_url": _image,
    "input_file": _file,
    "encrypted_content": _sealed,
}
_KNOWN = (*sorted(_TEXTS), "refusal", "input_audio", *_READERS)
# What a model and a client get in place of parts that can't be read.
_NO_IMAGE = ("An image", "give it as `image_url`, because no files are stored")
_UNREADABLE = {
    "input_image": _NO_IMAGE,
    "image_url": _NO_IMAGE,
    "encrypted_content": ("A message that another provider has encrypted", "begin a new conversation"),
    "input_file": ("A file", "send its text, as `data:text/...;base64,` or as `input_text`, or its pages as images"),
}


def reasoning_of(item: Mapping[str, Any]) -> str:
    """Returns the text of a reasoning item; empty if it holds none that can be read, as other providers' do."""
    for member in ("content", "summary"):
        parts = item.get(member)
        texts = [part["text"] for part in parts if _has_text(part)] if isinstance(parts, Sequence) else []
        if texts and not isinstance(parts, str):
            return "\n".join(texts)
    return unseal(item.get("encrypted_content")) or ""


def _has_text(part: Any) -> bool:
    return isinstance(part, Mapping) and isinstance(part.get("text"), str) and part["text"] != ""
