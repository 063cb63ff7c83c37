"""Changes that the gateway makes in a request's body: collected on the way to an engine, and applied once.

Among them are options that it adds: no speculation, reports of violations, ids of tokens, and usage, which a client
that did not ask for it must not get.
"""

from collections.abc import Collection, Iterable, Mapping, Sequence
from typing import Literal

import msgspec
from msgspec import UNSET, Raw

from serve.errors import InvalidRequestError
from serve.http1.turns import joined
from serve.request.completion import MALFORMED, NONE, CompletionRequest, holds, not_json
from serve.request.long_json import MOST_AT_ONCE_BYTES, LongJson, decode
from serve.request.media import drop_lookalikes

ReasoningField = Literal["reasoning", "reasoning_content"]

_NONE: frozenset[str] = frozenset()
_members = msgspec.json.Decoder(dict[str, Raw])
_messages = msgspec.json.Decoder(list[Raw])
_OTHER: dict[ReasoningField, ReasoningField] = {"reasoning": "reasoning_content", "reasoning_content": "reasoning"}
_options: msgspec.json.Decoder[dict[str, object] | None] = msgspec.json.Decoder(dict[str, object] | None)
# Members of which parts are judged, and marks without which nobody finds a URL to fetch in one of them.
_JUDGED_WITHIN = ("messages", "chat_template_kwargs", "structured_outputs")
_FETCHED_MARKS = (b'_url"', b"\\u00")
_MOST_VALUES = 200_000  # to be made objects, for which a decoder takes 10 ms; prose has fewer commas
_YES = frozenset({"true", "1", "1.0", "t", "y", "yes", "on"})  # as vLLM and SGLang read what should be a boolean
# Tells the engine's scheduler not to speculate for this request.
OPT_OUT = {"enable_speculative": 0}
# Tells our parsers inside the engine to report what they could not read, so that the guard sees it.
REPORT = {"specgate_violations": 1}


class BodyPatch:
    """Changes of the members of a body.

    Members keep their order and values their bytes, but for those that are changed. A patch that only adds members
    leaves all the rest as it is, and where it is. No step takes longer than reading the body once, so that a long one
    is patched in a thread and nobody else waits.

    Attributes:
        once: Of several members of one name only the last stays, which the gateway has read; within what it judges,
            too, and there none in messages is like one that it reads.
    """

    __slots__ = ("_added", "_dropped", "_nulls", "_reasoning", "_set", "once")

    def __init__(self) -> None:
        self._added: dict[str, bytes] = {}
        self._set: dict[str, bytes] = {}
        self._dropped = self._nulls = _NONE
        self.once = False
        self._reasoning: ReasoningField | None = None

    def __bool__(self) -> bool:
        return bool(self._added) or self.reads

    @property
    def reads(self) -> bool:
        """True if it does more than add members, so that bodies are read to apply it."""
        return bool(self._set or self._dropped or self._nulls or self.once or self._reasoning)

    def copy(self) -> "BodyPatch":
        """Returns a patch of the same changes, to be given more."""
        other = BodyPatch.__new__(BodyPatch)
        other._added, other._set = self._added.copy(), self._set.copy()
        other._dropped, other._nulls = self._dropped, self._nulls
        other.once, other._reasoning = self.once, self._reasoning
        return other

    def add(self, name: str, value: bytes) -> None:
        """Adds a member. The body has none of that name, or it is dropped."""
        self._added[name] = value

    def set(self, name: str, value: bytes) -> None:
        """Replaces the value of a member where it stands, or adds the member at the end."""
        self._set[name] = value

    def drop(self, names: Collection[str], nulls: Collection[str] = ()) -> None:
        """Leaves members out. `names` go whatever their values, `nulls` if they are null."""
        if names:
            self._dropped = self._dropped.union(names)
        if nulls:
            self._nulls = self._nulls.union(nulls)

    def name_reasoning(self, name: ReasoningField) -> None:
        """Gives the reasoning of earlier turns the name under which the engine reads it.

        Servers differ, and ignore any other name. A message that has reasoning under both names keeps both; an empty
        one gives way.
        """
        self._reasoning = name

    def apply(self, body: bytes) -> bytes:
        """Returns a body with the changes: the very same one if nothing changes. It was parsed as a request before.

        Raises:
            InvalidRequestError: It is no JSON in a part that the parser passed over, or holds more values than can be
                rewritten.
        """
        return joined(self.parts(body))

    def parts(self, body: bytes) -> Sequence[bytes | memoryview]:
        """Returns what `apply` does in parts, to be sent one after the other.

        Raises:
            InvalidRequestError: As of `apply`.
        """
        if self.reads and len(body) > MOST_AT_ONCE_BYTES:
            long = LongJson(body)
            patched = joined(self._parts(long.short))
            return (body if patched is long.short else long.filled(patched),)
        return self._parts(body)

    def _parts(self, body: bytes) -> Sequence[bytes | memoryview]:
        try:
            changed = self._changed(body) if self.reads else None
        except MALFORMED as error:
            raise not_json(error) from error
        added = [msgspec.json.encode(name) + b":" + value + b"," for name, value in self._added.items()]
        if changed is not None:
            return (joined((b"{", *added, *changed, b"}") if changed else (b"{", b"".join(added)[:-1], b"}")),)
        if not added:
            return (body,)
        start, view = body.index(b"{") + 1, memoryview(body)
        return (view[:start], *added, view[start:])

    def _changed(self, body: bytes) -> list[bytes | memoryview] | None:
        """Returns the members as they are to be written; None if all stay as they are."""
        members = _members.decode(body)
        if self.once:
            members.update({name: _named_once(name, members[name]) for name in _JUDGED_WITHIN if name in members})
        values: dict[str, bytes | Raw] = {**members, **self._set}
        for name in self._dropped.union(self._nulls).intersection(members):
            if name not in self._set and (name in self._dropped or _is_null(members[name])):
                del values[name]
        if self._reasoning is not None:
            mark = b'"%b"' % _OTHER[self._reasoning].encode()
            messages = values.get("messages", b"")
            # A member of the body is looked for in the body: a copy of many bytes would hold everybody up.
            if holds(messages if isinstance(messages, bytes) else body, mark):
                values["messages"] = _renamed(messages, self._reasoning, mark) or messages
        same = len(values) == len(members) and all([values.get(name) is value for name, value in members.items()])
        if same and not self.once:
            return None
        parts: list[bytes | memoryview] = []
        for name, value in values.items():
            parts += (b"," if parts else b"", msgspec.json.encode(name), b":", memoryview(value))
        return parts


def _named_once(name: str, value: Raw) -> Raw:
    """Returns the value of a member, whose objects have each name once."""
    text = bytes(value)
    if name == "messages" and not any([holds(text, mark) for mark in _FETCHED_MARKS]):
        return value
    if text.count(b",") > _MOST_VALUES:
        raise InvalidRequestError(f"The body has more than {_MOST_VALUES} values.", code="over_limit")
    decoded = msgspec.json.decode(text)
    if name == "messages":
        drop_lookalikes(decoded)
    return Raw(msgspec.json.encode(decoded))


def _is_null(value: Raw) -> bool:
    return bytes(memoryview(value)[:5]) == b"null"


def _says_nothing(value: Raw) -> bool:
    """Returns whether a text is missing, null or empty."""
    return value is NONE or _is_null(value) or bytes(memoryview(value)[:3]) == b'""'


def _renamed(messages: bytes | Raw, name: ReasoningField, mark: bytes) -> bytes | None:
    """Returns messages with their reasoning under one name; None if they stay as they are."""
    try:
        parts = decode(_messages, messages)
        values = [_message(part, name) if holds(bytes(part), mark) else part for part in parts]
    except msgspec.ValidationError:
        return None  # a prompt in place of messages, for the engine to judge
    if all([value is part for value, part in zip(values, parts, strict=True)]):
        return None
    return array_of(values)


def array_of(values: Iterable[bytes | Raw]) -> bytes:
    parts: list[bytes | memoryview] = [b"["]
    for value in values:
        parts += (memoryview(value), b",")
    return joined([*parts[:-1], b"]"]) if len(parts) > 1 else b"[]"


def _message(raw: Raw, name: ReasoningField) -> bytes | Raw:
    members = decode(_members, raw)
    other = _OTHER[name]
    if other not in members or not _says_nothing(members.get(name, NONE)) or _says_nothing(members[other]):
        return raw
    members[name] = members.pop(other)
    return msgspec.json.encode(members)


def add_xargs(patch: BodyPatch, request: CompletionRequest, xargs: Mapping[str, int]) -> None:
    """Adds our arguments to those in `vllm_xargs`. They win over the client's of the same name."""
    if request.vllm_xargs is UNSET:
        patch.add("vllm_xargs", msgspec.json.encode(xargs))
    else:
        patch.set("vllm_xargs", msgspec.json.encode({**(request.vllm_xargs or {}), **xargs}))


def wants_usage(request: CompletionRequest) -> bool:
    """Returns whether the answer is to tell its usage: a whole one always does, a stream if its client asks for it."""
    if not request.stream:
        return True
    if request.stream_options is NONE:
        return False
    options = _stream_options(request)
    return options is None or includes_usage(options)


def includes_usage(stream_options: object) -> bool:
    """Returns whether a stream's options ask for its usage. Without a word of it they do not, as in OpenAI's API."""
    asked = stream_options.get("include_usage") if isinstance(stream_options, dict) else None
    return str(asked).lower() in _YES


def ask_usage(patch: BodyPatch, request: CompletionRequest) -> None:
    """Asks for usage in the last frame of a stream. For a request of which `wants_usage` does not hold."""
    if request.stream_options is NONE:
        patch.add("stream_options", b'{"include_usage":true}')
        return
    options = {**(_stream_options(request) or {}), "include_usage": True}
    options.pop("continuous_usage_stats", None)
    patch.set("stream_options", msgspec.json.encode(options))


def ask_ids(patch: BodyPatch, request: CompletionRequest) -> None:
    """Asks for the ids of the tokens of prompt and answer. For a request that does not."""
    if request.return_token_ids is NONE:
        patch.add("return_token_ids", b"true")
    else:
        patch.set("return_token_ids", b"true")


def _stream_options(request: CompletionRequest) -> dict[str, object] | None:
    """Returns the options of a stream; None if they are not an object, which is for the engine to refuse."""
    try:
        return _options.decode(request.stream_options) or {}
    except MALFORMED:
        return None
