"""The contents of a Responses request's items, as text and as the parts of a chat message."""

import binascii
from base64 import b64decode
from collections.abc import Mapping, Sequence
from typing import Any

from serve.dialects.chat import text_part
from serve.dialects.reasoning import unseal
from serve.errors import InvalidRequestError

_TEXTS = frozenset({"input_text", "output_text", "text", "reasoning_text", "summary_text"})


def as_parts(content: str | list[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns a chat message's content as a list of parts."""
    return [text_part(content)] if isinstance(content, str) else content


def joined_text(parts: Sequence[Mapping[str, Any]]) -> str:
    """Returns the texts among the parts of a chat message, a line each."""
    return "\n".join(part["text"] for part in parts if part["type"] == "text")


def parts_of(content: Any, param: str) -> list[dict[str, Any]]:
    """Returns an item's content as the parts of a chat message.

    Args:
        content: A string or a list of parts; null is empty.
        param: Its place in the request.

    Raises:
        InvalidRequestError: The content has no known shape, or refers to something that is stored elsewhere.
    """
    if content is None:
        return []
    if isinstance(content, str):
        return [text_part(content)]
    if not isinstance(content, Sequence):
        raise InvalidRequestError(f"`{param}` must be a string or a list of parts.", param)
    return [_part(part, f"{param}[{index}]") for index, part in enumerate(content)]


def _part(part: Any, param: str) -> dict[str, Any]:
    if isinstance(part, str):
        return text_part(part)
    kind = part.get("type") if isinstance(part, Mapping) else None
    if kind in _TEXTS:
        return text_part(str(part.get("text") or ""))
    if kind == "refusal":
        return text_part(str(part.get("refusal") or ""))
    if kind in ("input_image", "image_url"):
        return _image(part, param)
    if kind == "input_audio":
        return {"type": "input_audio", "input_audio": part.get("input_audio")}
    if kind == "input_file":
        return text_part(_file(part, param))
    raise InvalidRequestError(f"`{param}` has a type that is not known here: {kind!r}.", f"{param}.type")


def _image(part: Mapping[str, Any], param: str) -> dict[str, Any]:
    given = part.get("image_url")
    url = given.get("url") if isinstance(given, Mapping) else given
    if not isinstance(url, str):
        raise InvalidRequestError(
            f"`{param}` must have an `image_url`; files are not stored here.", f"{param}.image_url"
        )
    detail = part.get("detail")
    # `original` and what else may come is not in chat's vocabulary.
    return {"type": "image_url", "image_url": {"url": url} | ({"detail": detail} if detail in ("low", "high") else {})}


def _file(part: Mapping[str, Any], param: str) -> str:
    """Returns a file's text; no other files can be read here."""
    data = part.get("file_data")
    name = part.get("filename")
    if isinstance(data, str):
        head, comma, encoded = data.partition(",")
        if comma and head.startswith("data:text/") and head.endswith(";base64"):
            try:
                return f"{name or 'file'}:\n{b64decode(encoded, validate=True).decode()}"
            except (binascii.Error, UnicodeDecodeError) as error:
                raise InvalidRequestError(
                    f"`{param}.file_data` can't be decoded: {error}.", f"{param}.file_data"
                ) from error
    raise InvalidRequestError(
        f"`{param}`: only files of text given as `data:text/...;base64,` can be read here.", param, "unsupported_file"
    )


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
