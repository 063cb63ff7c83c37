"""Media in messages: an engine fetches what their URLs name, so that a client could reach what only engines can."""

from collections.abc import Iterable
from operator import attrgetter
from urllib.parse import urlsplit

import msgspec
from msgspec import Raw, Struct

from serve.config.requests import RequestsConfig
from serve.errors import InvalidRequestError
from serve.request.completion import NONE, holds, not_allowed

# Marks of content that an engine fetches or loads; escapes could hide any of them.
_MEDIA_MARKS = (b"_url", b"_embeds", b"\\u00")
_ODD_IN_URL = frozenset("\\@ \t\r\n")


class _Url(Struct, gc=False):
    url: str | None = None


class _Part(Struct, gc=False):
    image_url: str | _Url | None = None
    video_url: str | _Url | None = None
    audio_url: str | _Url | None = None
    image_embeds: Raw = NONE
    audio_embeds: Raw = NONE
    video_embeds: Raw = NONE
    prompt_embeds: Raw = NONE


class _Spoken(Struct, gc=False):
    content: str | list[_Part | str] | None = None


class _Conversation(Struct, gc=False):
    messages: list[_Spoken] | None = None


_conversation = msgspec.json.Decoder(_Conversation)
_URLS = attrgetter("image_url", "video_url", "audio_url")
_EMBEDS = attrgetter("image_embeds", "audio_embeds", "video_embeds", "prompt_embeds")
_NO_URLS = (None, None, None)
_NO_EMBEDS = (NONE, NONE, NONE, NONE)


class MediaRules:
    """Applies the rules of one configuration to the media in messages.

    Args:
        config: Names the hosts that engines may fetch from, and says if embeddings may pass.
    """

    def __init__(self, config: RequestsConfig) -> None:
        self._hosts = frozenset(config.media_hosts)
        self._may_embed = "prompt_embeds" in config.pass_fields

    def check(self, contents: Iterable[Raw], body: bytes) -> None:
        """Checks the media in a request's messages.

        Args:
            contents: Of its messages, those that are lists of parts.
            body: The request's, which is read again if one of them may name media.

        Raises:
            InvalidRequestError: An engine would fetch from a host that is not listed, or load embeddings.
        """
        if not any(map(_may_name_media, contents)):
            return
        try:
            messages = _conversation.decode(body).messages
        except msgspec.ValidationError as error:
            raise InvalidRequestError(f"The content of a message is wrong: {error}.", param="messages") from error
        for message in messages or ():
            for part in message.content if isinstance(message.content, list) else ():
                if isinstance(part, _Part):
                    self._check_part(part)

    def _check_part(self, part: _Part) -> None:
        if _EMBEDS(part) != _NO_EMBEDS and not self._may_embed:
            raise not_allowed("prompt_embeds", "messages")
        urls = _URLS(part)
        if urls == _NO_URLS:
            return
        for url in urls:
            text = url.url if isinstance(url, _Url) else url
            if text is not None and not self._may_fetch(text):
                raise InvalidRequestError(
                    "Media in messages must be `data:` URLs or come from a host that the operator has listed in "
                    "`requests.media_hosts`.",
                    param="messages",
                    code="media_not_allowed",
                )

    def _may_fetch(self, url: str) -> bool:
        if url[:5].lower() == "data:":
            return True
        if not self._hosts or not _ODD_IN_URL.isdisjoint(url):
            return False
        try:
            parts = urlsplit(url)
        except ValueError:
            return False
        return parts.scheme in ("http", "https") and parts.hostname in self._hosts


def _may_name_media(content: Raw) -> bool:
    parts = bytes(content)
    return any([holds(parts, mark) for mark in _MEDIA_MARKS])
