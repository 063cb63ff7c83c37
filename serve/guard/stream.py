"""One attempt's stream through the guard: the engine's bytes in, the bytes that may go out."""

from typing import Any

from serve.errors import EngineError
from serve.guard.core import Guard, GuardState
from serve.guard.frame_template import TemplateLearner
from serve.sse import FrameReader, decode_chunk, encode_frame, frame_data, is_done


class GuardedStream:
    """Guards one attempt's stream; the engine's own bytes go out wherever nothing had to change.

    Args:
        guard: Checks the response; ready for this attempt.

    Attributes:
        ending: The chunks that end the client's stream, once the attempt is over and if it was the last.
        failure: The engine's fault, if that ended the attempt.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._frames = FrameReader()
        self._templates = TemplateLearner()
        self.ending: list[dict[str, Any]] = []
        self.failure: EngineError | None = None

    @property
    def over(self) -> bool:
        """True if the rest of this attempt is of no use."""
        return self._guard.state is not GuardState.OPEN and not self._guard.awaits_usage

    def feed(self, data: bytes) -> bytes:
        """Returns the bytes that may go out now, including those that came before a frame that ends the attempt."""
        out: list[bytes] = []
        try:
            for frame in self._frames.feed(data):
                self._feed_frame(frame, out)
                if self.over:
                    break
        except EngineError as error:
            self.finish(error)
        return out[0] if len(out) == 1 else b"".join(out)

    def finish(self, failure: EngineError | None = None) -> None:
        """Ends the attempt; does nothing if it is over already.

        Args:
            failure: The engine's fault, if that ended the stream.
        """
        if self._guard.state is not GuardState.OPEN:
            return
        self.failure = failure
        self.ending = self._guard.finish() if failure is None else self._guard.broke(failure.message)

    def _feed_frame(self, frame: bytes, out: list[bytes]) -> None:
        template = self._templates.template
        delta = template.match(frame) if template is not None else None
        if template is None or delta is None or (text := self._guard.feed_delta(delta)) is None:
            self._parse(frame, out)
        elif text:
            out.append(frame if text == delta.text else template.render(text))

    def _parse(self, frame: bytes, out: list[bytes]) -> None:
        """Feeds a frame to the guard as parsed JSON."""
        data = frame_data(frame)
        if data is None:
            out.append(frame)  # a comment that keeps the connection alive
            return
        if is_done(data):
            return
        chunk = decode_chunk(data)
        if (error := chunk.get("error")) is not None:
            message = error.get("message") if isinstance(error, dict) else None
            raise EngineError(f"The engine failed in the middle of the response{f': {message}' if message else '.'}")
        self._templates.learn(frame, chunk)
        out += [frame if allowed is chunk else encode_frame(allowed) for allowed in self._guard.feed(chunk)]
