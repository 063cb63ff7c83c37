"""The last stage of a stream whose client speaks a dialect: chat frames in, the dialect's events out."""

import logging
from collections.abc import Sequence

from serve.dialects.answer import REASONING, TEXT
from serve.dialects.dialect import Encoder
from serve.dialects.failure import Failure
from serve.errors import INTERNAL, EngineError, GatewayError
from serve.http1.sse import is_done
from serve.stream.frame import ARGUMENTS, Frame, FrameTemplate, TextPlace
from serve.stream.line import Stage
from serve.telemetry.request_log import log_fault

log = logging.getLogger("ray.serve.specgate.dialects")

# The texts that clients get, by where a chat stream has them: those of the first choice.
_KINDS = {
    TextPlace(0, "content", -1): TEXT,
    TextPlace(0, "reasoning", -1): REASONING,
    TextPlace(0, "reasoning_content", -1): REASONING,
}
_CALLS = (0, ARGUMENTS)


class Translate(Stage):
    """Turns a chat stream into the events of a dialect. It raises nothing: the event loop itself may call.

    Args:
        encoder: Of the dialect, for this stream; it has begun.
        request_id: For the log.

    Attributes:
        ended: The client's stream has had its end; whatever follows is dropped.
        failure: Why the stream could not be translated; None if it could.
        fed_bytes: Bytes of the frames so far.
    """

    exact = False
    limit_bytes = 32 * 1024 * 1024  # the guard bounds its own frames, and sends a call as one

    def __init__(self, encoder: Encoder, request_id: str) -> None:
        self.ended = False
        self.failure: GatewayError | None = None
        self.fed_bytes = 0
        self._encoder = encoder
        self._request_id = request_id
        self._template: FrameTemplate | None = None
        self._kind: str | None = None  # of the texts to which the template adds
        self._is_call = False  # it adds to a call

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Returns the events for a frame, as one."""
        if self.ended:
            return ()
        self.fed_bytes += len(frame.raw) or len(frame.text)
        try:
            events = self._events(frame)
        except GatewayError as error:
            events = self._fail(error)
        except BaseException:  # noqa: BLE001 - the last resort, as in the gateway itself
            log_fault(log, "the answer could not be translated", self._request_id)
            events = self._fail(GatewayError(INTERNAL))
        return (Frame(events),) if events else ()

    def close(self, frames: Sequence[Frame]) -> bytes:
        """Returns the events for the last frames, and those that end the client's stream."""
        events = [passed.raw for frame in frames for passed in self.feed(frame)]
        if not self.ended:
            self.ended = True
            try:
                events.append(self._encoder.finish())
            except GatewayError as error:
                events.append(self._fail(error))
        return b"".join(events)

    def keep_alive(self) -> bytes:
        """Returns an event that only shows that the stream is alive."""
        return b"" if self.ended else self._encoder.keep_alive()

    def fail(self, failure: Failure) -> bytes:
        """Returns the events that end a stream that broke; nothing if it has ended already."""
        if self.ended:
            return b""
        self.ended = True
        return self._encoder.fail(failure)

    def _events(self, frame: Frame) -> bytes:
        if (template := frame.template) is not None:
            if template is not self._template:
                self._template, self._kind = template, _KINDS.get(template.place)
                self._is_call = template.place[:2] == _CALLS
            if self._kind is not None:
                return self._encoder.feed_text(self._kind, frame.text)
            events = self._encoder.feed_arguments(template.place.call, frame.text) if self._is_call else None
            if events is not None:
                return events
        if not frame.whole:
            raise EngineError(f"The engine sent an event of more than {self.limit_bytes} bytes.")
        data = frame.data() if frame.chunk is None else None
        if frame.chunk is None and (data is None or is_done(data)):
            return b""
        chunk = frame.parsed(data)
        if chunk.get("error") is not None:
            return self.fail(Failure.of_frame(chunk["error"]))
        return self._encoder.feed(chunk)

    def _fail(self, error: GatewayError) -> bytes:
        """Returns the events that end a stream that can't be translated."""
        self.failure = error
        self.ended = True
        return self._encoder.fail(Failure.of_error(error))
