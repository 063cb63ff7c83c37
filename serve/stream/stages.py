"""Stages that change what an engine's answer says beside the answer: its name of the model, drafts, usage, ids."""

import json
import re
from collections.abc import Sequence
from typing import cast

import msgspec
from msgspec import Raw, Struct

from serve.stream.frame import Frame, FrameTemplate
from serve.stream.line import Stage, ignore

# vLLM's and SGLang's, and what both begin with. `in` costs three times what `find` does: it tries for a number first.
_DRAFT_REPORT = re.compile(rb'"(?:speculative_decoding|spec_tokens_details)"\s*:\s*(?=[{\[])')
_BEGINS_REPORT = b'"spec'
_DECODER = json.JSONDecoder()
# In a chunk that may hold nothing but usage. Within a JSON string the quotes would be escaped: no text looks so.
NO_CHOICES = (b'"choices":[]', b'"choices": []')
_USAGE = b'"usage"'
# What separates a member from the next goes with it: the comma before it or, where it is the first, the one behind it.
_IDS_MEMBER = re.compile(rb'(,\s*)?"(prompt_)?token_ids"\s*:\s*(?:null|\[([-0-9,\s]*+)\])(?(1)|\s*,?\s*)')
_IDS_NAME_END = b'token_ids"'
_BYTES_OF_ID = 8  # at most, with its comma, in any vocabulary

_decode_ids = msgspec.json.Decoder(list[int]).decode


class _Last(Struct, gc=False):
    """A chunk, as far as it tells usage."""

    choices: list[Raw]
    usage: dict[str, Raw] | None = None


_decode_last = msgspec.json.Decoder(_Last).decode


class Rename(Stage):
    """Puts our name of a model in place of the engine's in one response.

    Only a member `model` of exactly that value is replaced. The quotes of such a member inside a text are escaped, so
    that the bytes of a text never look like one.
    """

    def __init__(self, served: str, ours: str) -> None:
        self._pattern = _pattern(served)
        self._theirs: FrameTemplate | None = None
        self._mine: FrameTemplate
        self._ours = rb"\g<1>" + json.dumps(ours).encode().replace(b"\\", rb"\\")

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame under our name."""
        if (template := frame.template) is not None:
            if template is not self._theirs:
                self._theirs, self._mine = template, self._renamed(template)
            return (Frame(self._mine.around(template.inner(frame.raw)), self._mine, frame.text),)
        renamed = self.whole(frame.raw)
        if renamed == frame.raw:
            return (frame,)
        return (Frame(renamed, learner=frame.learner, sent=frame.raw, whole=frame.whole),)

    def _renamed(self, template: FrameTemplate) -> FrameTemplate:
        return FrameTemplate(self.whole(template.prefix), self.whole(template.suffix), template.place)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body under our name."""
        return self._pattern.sub(self._ours, body)


class Without(Stage):
    """Takes out what is not for the client.

    Args:
        drafts: What an engine reports of one request's drafts: how many were accepted shows what others were answered.
            vLLM puts it into `metrics`, SGLang into its own members; `null` takes its place, as where an engine has
            none.
        usage: The chunk that ends a stream with its usage, for a client that did not ask for it. It has no choice, and
            clients that expect none of its kind fail at `choices[0]`. The gateway may have asked for it, or the engine
            sends it unasked.
    """

    skim = staticmethod(ignore)

    def __init__(self, *, drafts: bool = False, usage: bool = False) -> None:
        self._drafts = drafts
        self._usage = usage

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns what is left of a frame, if anything."""
        raw = frame.raw
        if frame.template is not None:
            return (frame,)
        if (
            self._usage
            and raw.find(_USAGE) >= 0
            and (NO_CHOICES[0] in raw or NO_CHOICES[1] in raw)
            and _is_usage(frame.data())
        ):
            return ()
        if not self._drafts or raw.find(_BEGINS_REPORT) < 0:
            return (frame,)
        left = self.whole(raw)
        return (frame,) if left is raw else (Frame(left, learner=frame.learner, sent=raw, whole=frame.whole),)

    def whole(self, body: bytes) -> bytes:
        """Returns a whole body without the report on drafts."""
        if not self._drafts or body.find(_BEGINS_REPORT) < 0:
            return body
        left: list[bytes] = []
        place = 0
        for member in _DRAFT_REPORT.finditer(body):
            if member.end() < place:  # inside of one that is out already
                continue
            left += (body[place : member.end()], b"null")
            place = _end_of_value(body, member.end())
        return b"".join((*left, body[place:])) if left else body


class TokenIds(Stage):
    """Keeps the ids of one answer with one choice, and takes them out of its bytes before anybody reads them.

    They differ from frame to frame, so that frames which hold them could not be told by their begin and their end.

    Args:
        prompt_bytes: Of the request: its prompt has at most as many tokens, and their ids come in one frame.

    Attributes:
        allowance_bytes: A frame may be longer by so much as long as the ids are in it.
    """

    def __init__(self, prompt_bytes: int = 0) -> None:
        self.allowance_bytes = prompt_bytes * _BYTES_OF_ID
        self._prompt = b""
        self._written: list[bytes] = []

    @property
    def prompt(self) -> list[int]:
        """The ids of the prompt; empty if the engine has not sent them."""
        return _ids((self._prompt,))

    @property
    def written(self) -> list[int]:
        """The ids of what has arrived of the answer."""
        return _ids(self._written)

    def edit(self, raw: bytes) -> bytes:
        """Returns a frame without its ids."""
        name = raw.find(_IDS_NAME_END)
        if name < 0:
            return raw
        begin, end = name + len(_IDS_NAME_END), raw.find(b"]", name)
        if raw[name - 2 : name] == b',"' and raw[begin : begin + 2] == b":[" and raw.find(_IDS_NAME_END, end) < 0:
            ids = raw[begin + 2 : end]  # as vLLM writes them, which is as nearly always
            if ids.isdigit() or ids.replace(b",", b"").isdigit():
                self._written.append(ids)
                return raw[: name - 2] + raw[end + 1 :]
        return _IDS_MEMBER.sub(self._take, raw)

    def whole(self, body: bytes) -> bytes:
        """Returns an answer that does not stream without its ids."""
        return self.edit(body)

    def _take(self, member: re.Match[bytes]) -> bytes:
        ids = cast("bytes | None", member[3])
        if ids is not None and not ids.isspace() and ids:
            if member[2] is None:
                self._written.append(ids)
            else:
                self._prompt = ids
        return b""


def _is_usage(data: bytes | None) -> bool:
    """Returns whether a chunk has no choice and tells usage. Azure's first one has no choice, but tells of filters."""
    try:
        last = _decode_last(data or b"")
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        return False
    return not last.choices and last.usage is not None


def _end_of_value(body: bytes, start: int) -> int:
    """Returns where the object or list ends that begins here; the end of the body if it does not."""
    text = body[start:].decode("latin-1")  # a byte each, so that places agree
    try:
        return start + _DECODER.raw_decode(text)[1]
    except (ValueError, RecursionError):
        return len(body)


def _pattern(served: str) -> re.Pattern[bytes]:
    """Returns what finds the member however its value is escaped: JSON may escape slashes, and all but ASCII."""
    spellings = {json.dumps(served, ensure_ascii=ascii_only).encode() for ascii_only in (True, False)}
    values = b"|".join(re.escape(value).replace(b"/", rb"\\?/") for value in sorted(spellings))
    return re.compile(rb'("model"\s*:\s*)(?:%s)' % values)


def _ids(parts: list[bytes] | tuple[bytes, ...]) -> list[int]:
    """Returns ids that came in parts; none if they are no list of numbers: a foreign engine may send anything."""
    try:
        return _decode_ids(b"[" + b",".join(part for part in parts if part) + b"]")
    except msgspec.MsgspecError:
        return []
