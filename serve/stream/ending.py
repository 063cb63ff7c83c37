"""The end of a streamed answer: complete, or an error, in whatever words and shape its engine says so.

Servers agree on the frames of an answer, but each has its own way to say that it failed, and most send `[DONE]` even
then, which makes half an answer look like a whole one. So an answer is complete only if nothing spoke of an error and
every choice that began has a finish reason that stands for an end. Plain streams ask here (`End`), and so do the guard
and the dialects.
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from typing import Any, Literal, NamedTuple

import msgspec
from msgspec import Raw, Struct

from serve.errors import EngineError
from serve.http1.sse import CR, LF, decode_chunk, is_done, object_in
from serve.stream.frame import Frame, FrameReader
from serve.stream.line import Check, ignore

# OpenAI's finish reasons by those of other servers: vLLM, TGI, Mistral, and what stands before Anthropic and Google. An
# engine that gave up says `abort`, `error` or something of its own.
_FINISHED = {
    **{reason: reason for reason in ("stop", "length", "tool_calls", "function_call", "content_filter")},
    **dict.fromkeys(("repetition", "eos", "eos_token", "stop_sequence", "end_turn", "complete"), "stop"),
    **dict.fromkeys(("max_tokens", "model_length"), "length"),
    **dict.fromkeys(("tool_use", "tool_call"), "tool_calls"),
    **dict.fromkeys(("refusal", "safety", "recitation"), "content_filter"),
}
_KINDS = ("object", "type", "status", "event", "level", "severity")  # members whose value names what a chunk is
_BAD_KINDS = ("error", "exception", "failed", "failure", "fatal")  # or the end of it: `server_error`, `response.failed`
_NO_ERROR = re.compile(r"no\W?_?error")
_SUCCESSES = ("success", "ok")
# Members of an error without a member `error`: what frameworks answer, FastAPI and Spring among them.
_COMPLAINTS = ("detail", "details", "message", "msg", "exception", "fault", "reason", "title", "traceback")
_CODES = ("code", "status", "status_code", "statusCode")
_LOWEST_ERROR = 400
REFUSALS = (400, 413, 422)  # codes of errors that are the request's fault, wherever it is sent
_DEAD_ENGINE = "EngineCore"  # of which vLLM up to 0.12 says 400, as of every error within a stream
_FIELDS = frozenset({b"", b"data", b"event", b"id", b"retry"})  # of server-sent events; a comment has an empty name
_BOM = b"\xef\xbb\xbf"
_ERROR_MEMBER = b'error"'  # the end of a member's name, or of a text
_MOST_CHARACTERS = 500  # of an engine's words
# Of an object of Python, which tells where an engine's memory lies, and of what is behind the gateway. Each pattern
# begins with letters that are searched for fast: some engines' errors hold all of a prompt.
_ADDRESSES = (
    re.compile(r" at 0x[0-9a-f]{6,16}\b"),
    re.compile(r"1(?<![\w.]1)(?:0\.\d+|27\.\d+|92\.168|72\.(?:1[6-9]|2\d|3[01]))\.\d+\.\d+\b(?::\d+)?"),
)
_NOTHING = Raw()
# Members of a choice that are no part of its text; whatever else there is some client may show.
_ABOUT_A_CHOICE = frozenset({"index", "finish_reason", "stop_reason", "matched_stop", "logprobs", "token_ids"})
_NO_COMPLETION = "The engine sent an answer that is no completion."
INCOMPLETE = "The engine ended the stream before the answer was complete."


def is_finish(reason: Any) -> bool:
    """Returns whether a finish reason stands for the end of an answer, and not for one that was given up."""
    return isinstance(reason, str) and reason.lower() in _FINISHED


def gave_up(reason: Any) -> str:
    """Returns in words what an engine did that gives a finish reason which stands for no end."""
    return f"gave the answer up ({str(reason)[:_MOST_CHARACTERS]})"


def finish_of(reason: str) -> str:
    """Returns what OpenAI calls a finish reason; one that stands for no end is returned as it is."""
    return _FINISHED.get(reason.lower(), reason)


def without_addresses(said: str) -> str:
    """Returns an engine's words, of an error, without addresses that are nobody's business beyond the cluster."""
    for address in _ADDRESSES:
        said = address.sub("", said)
    return said


def failed(words: str = "") -> EngineError:
    """Returns the error of an engine that failed after its answer had begun, with its own words if it has said any."""
    said = " ".join(without_addresses(words).split())[:_MOST_CHARACTERS]
    return EngineError(f"The engine failed in the middle of the response{f': {said}' if said else '.'}")


def error_in(chunk: Mapping[str, Any]) -> EngineError | None:
    """Returns the error that a chunk of any shape reports, in any member; None for a part of an answer."""
    choices = chunk.get("choices")
    if _is_usual(chunk, choices):
        return None
    if choices is not None and not (isinstance(choices, list) and all([isinstance(each, dict) for each in choices])):
        return failed("a malformed chunk")
    for holder in (chunk, *(choices or ())):
        for name, value in holder.items():
            # `"error": null` is none; `{}` is one only where there is nothing else.
            if "error" in name.lower() and (value or (value == {} and not choices)):
                return failed(_words(value) or _words(holder))
            if name in _KINDS and isinstance(value, str) and _is_bad_kind(value):
                return failed(_words(holder))
            if name in _SUCCESSES and value is False:
                return failed(_words(holder))
    if not choices and (any(chunk.get(name) for name in _COMPLAINTS) or _has_bad_code(chunk)):
        return failed(_words(chunk))
    return None


class Refusal(NamedTuple):
    """A request that an engine refuses.

    Attributes:
        status: It would have had as a response of its own.
    """

    status: int
    body: bytes


def refusal_in(begin: bytes, *, streamed: bool) -> Refusal | None:
    """Returns what a response of status 200 begins with, if that is the refusal of a request that no engine would take.

    vLLM and SGLang look at some of a stream's request, such as its length, when status 200 is already sent; some
    proxies send no other status.

    Args:
        begin: The first bytes of the body, which hold all of an error: engines send it in one piece.
        streamed: They are of a stream.
    """
    if begin.find(_ERROR_MEMBER) < 0:  # as nearly always
        return None
    for data in [frame.data() for frame in FrameReader().feed(begin)] if streamed else [begin]:
        if data is None:
            continue
        try:
            chunk = decode_chunk(data)
        except EngineError:
            return None
        error = chunk.get("error", chunk)
        if chunk.get("choices") or not isinstance(error, dict) or _DEAD_ENGINE in _words(error):
            return None
        code = error.get("code")
        return Refusal(code, data) if type(code) is int and code in REFUSALS else None
    return None


def whole_failure(body: bytes) -> EngineError | None:
    """Returns why the body of a whole answer is none: an error in any shape, or anything but a completion.

    Args:
        body: Of a response with status 200: a proxy before an engine, or its page for browsers, may answer so too.
    """
    try:
        complete = bool(_decode_whole(body).choices)
    except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
        complete = False
    if complete and body.find(_ERROR_MEMBER) < 0:
        return None
    try:
        return error_in(decode_chunk(body)) or (None if complete else EngineError(_NO_COMPLETION))
    except EngineError as error:
        return error


def is_readable(data: bytes | None) -> bool:
    """Returns whether a frame's data is an error as clients of chat completions read it, which may pass as it is."""
    try:
        chunk = decode_chunk(data or b"")
    except EngineError:
        return False
    error = None if chunk.get("choices") else chunk.get("error")
    return isinstance(error, dict) and isinstance(error.get("message"), str)


def error_around(frame: bytes) -> EngineError | None:
    """Returns the error that a frame's lines report beside its data: by the event's name, or by being no event."""
    if frame == _BOM or (frame.startswith(b"data: ") and frame.find(LF) >= len(frame) - 2 and CR not in frame):
        return None  # one line of data, as nearly always
    for line in frame.splitlines():
        name, _, value = line.partition(b":")
        if name not in _FIELDS:
            return failed(line.decode("utf-8", "replace"))
        if name == b"event" and _is_bad_kind(value.strip().decode("latin-1")):
            return failed()
    return None


class _Choice(Struct, gc=False, forbid_unknown_fields=True):
    """A choice of a chunk as all servers write it."""

    index: int = 0
    delta: Raw = _NOTHING
    text: Raw = _NOTHING
    logprobs: Raw = _NOTHING
    finish_reason: str | None = None
    stop_reason: Raw = _NOTHING
    matched_stop: Raw = _NOTHING
    token_ids: Raw = _NOTHING


class _Chunk(Struct, gc=False, forbid_unknown_fields=True):
    """A chunk of an answer as all servers write it; any other is looked at more closely."""

    choices: list[_Choice]
    object: Literal["chat.completion.chunk", "text_completion"]
    id: Raw = _NOTHING
    created: Raw = _NOTHING
    model: Raw = _NOTHING
    usage: Raw = _NOTHING
    system_fingerprint: Raw = _NOTHING
    service_tier: Raw = _NOTHING
    prompt_token_ids: Raw = _NOTHING


_decode = msgspec.json.Decoder(_Chunk).decode
_OBJECTS = ("chat.completion.chunk", "text_completion")
_MEMBERS, _MEMBERS_OF_CHOICE = frozenset(_Chunk.__struct_fields__), frozenset(_Choice.__struct_fields__)


def _is_usual(chunk: Mapping[str, Any], choices: Any) -> bool:
    """Returns whether a chunk of an answer has the members that all servers write, and no other."""
    if type(choices) is not list or chunk.get("object", _OBJECTS[0]) not in _OBJECTS or not _MEMBERS.issuperset(chunk):
        return False
    for choice in choices:  # noqa: SIM110 - any() with a generator would cost as much again
        if type(choice) is not dict or not _MEMBERS_OF_CHOICE.issuperset(choice):
            return False
    return True


class _AnyChoice(Struct, gc=False):
    """An object, whatever is in it."""


class _Whole(Struct, gc=False):
    """A whole answer, as far as it must be one."""

    choices: list[_AnyChoice]


_decode_whole = msgspec.json.Decoder(_Whole).decode


class Ending:
    """Follows the chunks of one answer, and knows whether it is complete.

    A choice is over with its finish reason (ADR 0121). Clients that stop there and clients that read on must get the
    same answer, so nobody should get what an engine says of it afterwards.

    Attributes:
        complete: Every choice that began has ended, and one did begin.
        any_over: A choice has ended.
        beyond: All that the last chunk says is of choices that had ended before.
    """

    def __init__(self) -> None:
        self._open: dict[int, bool] = {}
        self.any_over = False
        self.beyond = False

    def feed_other(self, *, whole: bool) -> None:
        """Takes note of what is no chunk: a comment, `[DONE]`, or a piece of what is too long to be read.

        Args:
            whole: It is no piece. One that comes when every choice has ended adds to none.
        """
        self.beyond = not whole and self.complete

    @property
    def complete(self) -> bool:
        return bool(self._open) and not any(self._open.values())

    @property
    def choices(self) -> int:
        """Number of choices that have begun."""
        return len(self._open)

    def feed(self, data: bytes) -> EngineError | None:
        """Takes the data of a frame; returns the error that it reports.

        Raises:
            EngineError: It is no JSON object.
        """
        try:
            choices = _decode(data).choices
            if self.any_over:
                self.beyond = bool(choices) and all([self._is_over(each.index) and _says(each) for each in choices])
        except (msgspec.MsgspecError, UnicodeDecodeError, RecursionError):
            return self.feed_chunk(decode_chunk(data))
        for choice in choices:
            if choice.finish_reason:
                return self._end(choices)
            if choice.index not in self._open:
                self._open[choice.index] = True
        return None

    def feed_chunk(self, chunk: Mapping[str, Any]) -> EngineError | None:
        """Does what `feed` does for a chunk of any shape that somebody has parsed."""
        if (error := error_in(chunk)) is not None:
            return error
        choices = chunk.get("choices") or ()
        try:
            if self.any_over:
                self.beyond = bool(choices) and all(
                    [self._is_over(each.get("index") or 0) and _says_more(each) for each in choices]
                )
            return self._end(
                [_Choice(each.get("index") or 0, finish_reason=each.get("finish_reason")) for each in choices]
            )
        except TypeError:
            return failed("a malformed chunk")

    def _is_over(self, index: int) -> bool:
        return not self._open.get(index, True)

    def _end(self, choices: list[_Choice]) -> EngineError | None:
        for choice in choices:
            reason = choice.finish_reason
            if reason and not is_finish(reason):
                return EngineError(f"The engine {gave_up(reason)}.")
            self._open[choice.index] = not reason and self._open.get(choice.index, True)
            self.any_over = self.any_over or bool(reason)
        return None


class End(Check):
    """Judges how a plain stream ends, and withholds all that would make a broken one look complete.

    An error in the shape that clients of chat read passes, but for addresses. Of any other, and of half an answer,
    `failure` is what the client must get in its place. Whatever breaks after a complete answer is nobody's loss, and
    says nothing.

    Args:
        several: The request may be for several answers, so that only the engine's `[DONE]` says that none is missing.
        waits: The client gets no error yet: somebody may go on with the answer.

    Attributes:
        done: The answer is complete, and the engine's `[DONE]` has passed.
        told: The engine's own error frame has passed.
        failure: Why the stream is broken; None as long as nothing says so.
        withheld: The error frame that could have passed.
    """

    skim = staticmethod(ignore)

    def __init__(self, *, several: bool = False, waits: bool = False) -> None:
        self._several = several
        self._waits = waits
        self.withheld: Frame | None = None
        self.over = False
        self.done = False
        self.told = False
        self.failure: EngineError | None = None
        self._ending = Ending()

    @property
    def complete(self) -> bool:
        """True if the client has the whole answer, but perhaps not its `[DONE]`."""
        return self.done or (self.failure is None and self._ending.complete and not self._several)

    @property
    def choices(self) -> int:
        """Number of choices that have begun."""
        return self._ending.choices

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the frame, or nothing if it is an error of another shape, or says more after the end."""
        if self.over or self.done:
            return ()
        if frame.template is not None and not self._ending.any_over:  # but for its text one that was judged before
            return (frame,)
        try:
            failure = self._judge(frame)
        except EngineError as error:  # no JSON, or not of an object
            failure = error
        if failure is None:
            return () if self._ending.beyond else (frame,)
        self.over = True
        if self.complete:
            return ()
        self.failure = failure
        if is_readable(frame.data()):
            frame = Frame(without_addresses(frame.encoded().decode("latin-1")).encode("latin-1"))
            if self._waits:
                self.withheld = frame
            else:
                self.told = True
        return (frame,) if self.told else ()

    def _judge(self, frame: Frame) -> EngineError | None:
        ending = self._ending
        if not frame.whole:  # too long to be looked at; nobody ends a stream so
            ending.feed_other(whole=False)
            return None
        if frame.chunk is not None:
            return ending.feed_chunk(frame.chunk)
        if (data := object_in(frame.raw)) is not None:
            return ending.feed(data)
        data = frame.data()
        if data is None:
            ending.feed_other(whole=True)
            return error_around(frame.raw)
        if is_done(data):
            ending.feed_other(whole=True)
            self.done = ending.complete
            return None if self.done else EngineError(INCOMPLETE)
        return ending.feed(data) or error_around(frame.raw)


def _says(choice: _Choice) -> bool:
    """Returns whether a choice of a chunk adds to an answer."""
    delta = msgspec.json.decode(choice.delta) if choice.delta else None
    text = msgspec.json.decode(choice.text) if choice.text else None
    return _says_more({"delta": delta, "text": text})


def _says_more(choice: Mapping[str, Any]) -> bool:
    for name, value in choice.items():
        said = value if isinstance(value, Mapping) else {"": value}
        if name not in _ABOUT_A_CHOICE and any([part for inner, part in said.items() if inner != "role"]):
            return True
    return False


def _is_bad_kind(kind: str) -> bool:
    """Returns whether the name of what a chunk is stands for an error."""
    return kind.lower().endswith(_BAD_KINDS) and not _NO_ERROR.fullmatch(kind.lower())


def _has_bad_code(chunk: Mapping[str, Any]) -> bool:
    """Returns whether a member is the HTTP status of an error, or a server's own word for one."""
    codes = [chunk[name] for name in _CODES if name in chunk]
    numbers = [int(code) for code in codes if isinstance(code, int | float) or (_is_text(code) and code.isdecimal())]
    return any([number >= _LOWEST_ERROR for number in numbers]) or (_is_text(chunk.get("code")) and not numbers)


def _words(said: Any) -> str:
    """Returns the message in what an engine sent as its error; empty if it holds none."""
    if isinstance(said, str):
        return said
    if isinstance(said, Mapping):
        found = (said.get(name) for name in ("message", "error", "msg", "detail", "error_message"))
        return next((each for each in found if isinstance(each, str) and each), "")
    return ""


def _is_text(value: Any) -> bool:
    return isinstance(value, str) and 0 < len(value) <= _MOST_CHARACTERS
