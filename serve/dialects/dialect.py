"""A dialect: one API that clients speak, as the functions that translate it to chat completions and back."""

from abc import ABC, abstractmethod
from collections.abc import Callable, Mapping
from dataclasses import dataclass
from typing import Any

from serve.dialects.answer import Answer
from serve.dialects.failure import Failure
from serve.request.completion import CHAT_PATH


@dataclass(frozen=True, slots=True)
class Translated:
    """A request as chat completions have it.

    Attributes:
        body: The chat body, for the engine.
        stream: True if the client wants a stream.
        memo: What the encoders must remember of the request; each dialect has its own type.
        dropped: Names of what the request held and no engine gets.
        max_tokens: The length that the answer may have at most, if the request says it for every model alike: agents
            send one number to all, and engines refuse one that is beyond their context.
    """

    body: bytes
    stream: bool
    memo: Any
    dropped: tuple[str, ...] = ()
    model: str = ""
    max_tokens: int | None = None


class Encoder(ABC):
    """Turns the chunks of a chat stream into the events of a dialect, as bytes ready to be sent.

    `start` is called once and first, then what feeds it and `keep_alive`, and at last either `finish` or `fail`, once.
    """

    def __init__(self, answer: Answer) -> None:
        self._answer = answer
        self._growing = ""  # id of the call that has begun and has had no end
        self._sent_calls = 0  # whose events have all been sent
        self._late: list[tuple[str, str]] = []  # texts that came while a call was growing

    @abstractmethod
    def start(self) -> bytes:
        """Returns the events that begin every stream."""

    def feed(self, chunk: Mapping[str, Any]) -> bytes:
        """Returns the events for one chunk of any shape: its texts, and more of a call that grows. Other calls wait for
        `finish`.
        """
        events = [self._text(kind, text) for kind, text in self._answer.feed(chunk)]
        if self._answer.growing:
            events.append(self._grow())
        return b"".join(events)

    @abstractmethod
    def feed_text(self, kind: str, text: str) -> bytes:
        """Does what `feed` does, for a chunk that holds nothing but more of one text.

        Args:
            kind: `REASONING` or `TEXT`.
            text: What is added; not empty.
        """

    def feed_arguments(self, place: int, text: str) -> bytes | None:
        """Does what `feed` does, for a chunk that holds nothing but more arguments of a call.

        Args:
            place: The index of the call.
            text: What is added; not empty.

        Returns:
            None if that is no call that grows; then nothing was done: `feed` the chunk.
        """
        return self._grow() if self._answer.add_arguments(place, text) else None

    @abstractmethod
    def keep_alive(self) -> bytes:
        """Returns an event that only shows that the stream is alive."""

    @abstractmethod
    def finish(self) -> bytes:
        """Returns the events that end a complete stream.

        Raises:
            EngineError: The engine did not end its answer, or it holds a call that must not reach a client.
        """

    @abstractmethod
    def fail(self, failure: Failure) -> bytes:
        """Returns the events that end a stream that broke."""

    @abstractmethod
    def _text(self, kind: str, text: str) -> bytes:
        """Returns the events for more text; nothing as long as a call grows, behind which it waits."""

    @abstractmethod
    def _grow(self) -> bytes:
        """Returns the events for more of the call that grows; the calls before it end, as they are complete."""


@dataclass(frozen=True, slots=True)
class Identity:
    """The names of one response.

    Attributes:
        request_id: The gateway's id of the request; a dialect puts its own prefix before it.
        model: The model's own name.
        context: Tokens of the model's context, if they are known and the request has a limit of its own.
    """

    request_id: str
    model: str
    context: int | None = None


@dataclass(frozen=True, slots=True)
class Dialect:
    """One API.

    Attributes:
        name: As `POST /v1/route/explain?api=` has it.
        decode: Translates a request's body. Raises `GatewayError`.
        stream_encoder: Returns the encoder of one stream.
        encode_whole: Translates a whole chat completion. Raises `EngineError` if it can't be one.
        encode_error: Returns status and body of an error response, given the request's id.
        id_header: Name of a further response header with the request's id; empty for none.
        engine_path: Where engines get what `decode` returns.
        estimate: Returns the body of an answer that the gateway gives itself when no engine can, given the memo; None
            where only an engine's answer will do.
        fails_in_stream: True for a failure that a client understands only as the end of a stream, even of one that
            has not begun.
    """

    name: str
    decode: Callable[[bytes], Translated]
    stream_encoder: Callable[[Any, Identity], Encoder]
    encode_whole: Callable[[Mapping[str, Any], Any, Identity], bytes]
    encode_error: Callable[[Failure, str], tuple[int, bytes]]
    id_header: str = ""
    engine_path: str = CHAT_PATH
    estimate: Callable[[Any], bytes] | None = None
    fails_in_stream: Callable[[Failure], bool] = lambda _: False
