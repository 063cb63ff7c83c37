"""Media in messages: which there are, and whose URLs an engine may fetch, since it could reach what no client can.

Nor may a client name them itself: engines keep media under such a name, for all clients, and look at nothing else.
"""

import re
from collections.abc import Iterable
from operator import attrgetter
from typing import Any
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from serve.errors import InvalidRequestError
from serve.http1.turns import PIECE_BYTES
from serve.request.completion import NONE, ChatMessage, FieldNames, given, holds, not_allowed
from serve.request.long_json import decode

# Marks of content that an engine fetches, loads or has kept; escapes could hide any of them.
_MEDIA_MARKS = (b"_url", b"_embeds", b'"uuid"', b'"image"', b'"video"', b'"audio"', b"\\u00")
_IMAGE_MARKS = (b"image", b"video", b"\\u00")
_IMAGE_TYPE = re.compile("(?:input_)?(?:image|video)")
_ESCAPE = b"\\"
_ODD_IN_URL = frozenset("\\@ \t\r\n")
_LONGEST_URL_BYTES = 64 * 1024  # of one to fetch: a text of megabytes would take too long to read


class _Url(Struct, gc=False):
    url: Raw = NONE
    content_hash: Raw = NONE
    max_dynamic_patch: Raw = NONE
    min_dynamic_patch: Raw = NONE


class _Part(Struct, gc=False):
    type: Raw = NONE
    uuid: Raw = NONE
    image_url: Raw = NONE
    video_url: Raw = NONE
    audio_url: Raw = NONE
    image_embeds: Raw = NONE
    audio_embeds: Raw = NONE
    video_embeds: Raw = NONE
    prompt_embeds: Raw = NONE
    image: Raw = NONE
    image_pil: Raw = NONE
    video: Raw = NONE
    audio: Raw = NONE
    time_series_url: Raw = NONE


# A URL may be a picture of 30 MB: it is passed over, and not made a text.
_parts = msgspec.json.Decoder(list[_Part | str])
_url = msgspec.json.Decoder(_Url)
_text = msgspec.json.Decoder(str | None).decode
_URLS = attrgetter("image_url", "video_url", "audio_url", "image", "video", "audio", "time_series_url")
_EMBEDS = attrgetter("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds")
_IMAGES = attrgetter("image_url", "video_url", "image_embeds", "video_embeds", "image", "image_pil", "video")
# The name of a picture in an engine's cache, and the number of pieces into which it is cut.
_STEERING_NAMES = ("content_hash", "max_dynamic_patch", "min_dynamic_patch")
_STEERING = attrgetter(*_STEERING_NAMES)
_NO_STEERING = (NONE, NONE, NONE)
_NO_URLS = (NONE,) * 7
_NO_EMBEDS = (NONE, NONE, NONE, NONE)


_NAMES = FieldNames((*ChatMessage.__struct_fields__, *_Part.__struct_fields__, *_Url.__struct_fields__))


def drop_lookalikes(messages: Any) -> None:
    """Takes out of messages and their media what only a reader that is not strict takes for a content or URL."""
    found = [message for message in messages if isinstance(message, dict)] if isinstance(messages, list) else []
    contents = [message["content"] for message in found if isinstance(message.get("content"), list)]
    parts = [part for content in contents for part in content if isinstance(part, dict)]
    urls = [value for part in parts for value in part.values() if isinstance(value, dict)]
    for each in (*found, *parts, *urls):
        for name in _NAMES.like(each):
            del each[name]


class MediaRules:
    """Applies the rules of one configuration to the media in messages: its `media_hosts` and `pass_fields`."""

    def __init__(self, hosts: Iterable[str], passed: Iterable[str]) -> None:
        self._hosts = frozenset(hosts)
        self._passed = frozenset(passed)

    def check(self, contents: Iterable[Raw]) -> None:
        """Checks the media in a request's messages. `contents` are those that are lists of parts.

        Raises:
            InvalidRequestError: An engine would fetch from a host that is not listed, load embeddings, or take what it
                has kept under a name.
        """
        try:
            for content in contents:
                if not _holds_any(content, _MEDIA_MARKS):
                    continue
                for part in decode(_parts, content):
                    if isinstance(part, _Part):
                        self._check_part(part)
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"The content of a message is wrong: {error}.", param="messages") from error

    def _check_part(self, part: _Part) -> None:
        if (_EMBEDS(part) != _NO_EMBEDS or _is_embeds(part)) and "prompt_embeds" not in self._passed:
            raise not_allowed("prompt_embeds", "messages")
        if part.uuid is not NONE:
            self._refuse("uuid", part.uuid)
        urls = _URLS(part)
        if urls == _NO_URLS:
            return
        for url in urls:
            if url is not NONE and not self._may_fetch(self._address(url)):
                raise InvalidRequestError(
                    "Media in messages must be `data:` URLs or come from a host that the operator has listed in "
                    "`requests.media_hosts`.",
                    param="messages",
                    code="media_not_allowed",
                )

    def _refuse(self, name: str, value: Raw) -> None:
        if name not in self._passed and given(value):
            raise not_allowed(name, "messages")

    def _address(self, member: Raw) -> Raw:
        """Returns the address alone, which some write as an object."""
        if bytes(memoryview(member)[:1]) != b"{":
            return member
        inner = decode(_url, member)
        if (values := _STEERING(inner)) != _NO_STEERING:
            for name, value in zip(_STEERING_NAMES, values, strict=True):
                self._refuse(name, value)
        return inner.url

    def _may_fetch(self, member: Raw) -> bool:
        if _is_data(member) or member is NONE:
            return True
        if memoryview(member).nbytes > _LONGEST_URL_BYTES:
            return False
        url = _text(member)
        if url is None or url[:5].lower() == "data:":
            return True
        if not self._hosts or not _ODD_IN_URL.isdisjoint(url):
            return False
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.hostname in self._hosts


def _is_data(url: Raw) -> bool:
    """Returns whether a text is a `data:` URL, as clients write them."""
    return bytes(memoryview(url)[:6]).lower() == b'"data:'


def _holds_any(content: Raw, marks: Iterable[bytes]) -> bool:
    parts = bytes(content)
    if len(parts) > PIECE_BYTES:
        return any([holds(parts, mark) for mark in marks])
    find = parts.find
    for mark in marks:  # noqa: SIM110 - any() with a generator costs the short ones most
        if find(mark) >= 0:
            return True
    return False


def has_images(content: Raw) -> bool:
    """Returns whether a list of parts holds a picture or a video; True for one that cannot be read."""
    if not _holds_any(content, _IMAGE_MARKS):
        return False
    try:
        return any([isinstance(part, _Part) and _is_image(part) for part in decode(_parts, content)])
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError, InvalidRequestError):
        return True


def _is_image(part: _Part) -> bool:
    if any([value is not NONE and bytes(memoryview(value)[:4]) != b"null" for value in _IMAGES(part)]):
        return True
    return _IMAGE_TYPE.match(_kind(part)) is not None


def _is_embeds(part: _Part) -> bool:
    """Returns whether a part's type alone says that it holds tensors, as vLLM's `prompt_embeds` does."""
    kind = bytes(part.type)
    return kind.endswith(b'_embeds"') or (_ESCAPE in kind and _kind(part).endswith("_embeds"))


def _kind(part: _Part) -> str:
    """Returns the type of a part; empty if it is no text."""
    return (_text(part.type) or "") if bytes(memoryview(part.type)[:1]) == b'"' else ""
