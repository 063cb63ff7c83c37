"""One attempt's stream through the guard: the engine's bytes in, the bytes that may go out."""

from typing import Any

from serve.errors import EngineError
from serve.guard.core import Guard, GuardState
from serve.guard.frame_template import PieceReader
from serve.sse import FrameReader, chunk_of, data_of, ends, frame_of


class Sieve:
    """Takes in one attempt's stream; what goes out is the engine's own bytes wherever nothing had to change.

    Args:
        guard: Judges the answer; ready for this attempt.

    Attributes:
        ending: The chunks that end the client's stream, once the attempt is over and if it was the last.
        failure: What went wrong with the engine, if that is what ended the attempt.
    """

    def __init__(self, guard: Guard) -> None:
        self._guard = guard
        self._frames, self._pieces = FrameReader(), PieceReader()
        self.ending: list[dict[str, Any]] = []
        self.failure: EngineError | None = None

    @property
    def over(self) -> bool:
        """Whether what follows of this attempt is of no use."""
        return self._guard.state is not GuardState.OPEN and not self._guard.awaits_usage

    def feed(self, data: bytes) -> bytes:
        """The bytes that may go out now; what passed before a frame that ends the attempt does."""
        passed: list[bytes] = []
        try:
            for frame in self._frames.feed(data):
                self._take(frame, passed)
                if self.over:
                    break
        except EngineError as error:
            self.broke(error)
        return passed[0] if len(passed) == 1 else b"".join(passed)

    def finish(self) -> None:
        """The stream is over."""
        if self._guard.state is GuardState.OPEN:
            self.ending = self._guard.finish()

    def broke(self, error: EngineError) -> None:
        """The stream ended by a fault of the engine's."""
        if self._guard.state is GuardState.OPEN:
            self.failure = error
            self.ending = self._guard.broke(error.message)

    def _take(self, frame: bytes, passed: list[bytes]) -> None:
        piece = self._pieces.read(frame)
        if piece is None or (text := self._guard.feed_delta(piece)) is None:
            self._read(frame, passed)
        elif text:
            passed.append(frame if text == piece.text else self._pieces.frame(text))

    def _read(self, frame: bytes, passed: list[bytes]) -> None:
        data = data_of(frame)
        if data is None:
            passed.append(frame)  # a comment that keeps the connection alive
            return
        if ends(data):
            return
        chunk = chunk_of(data)
        if (error := chunk.get("error")) is not None:
            said = error.get("message") if isinstance(error, dict) else None
            raise EngineError(f"The engine failed in the middle of the answer{f': {said}' if said else '.'}")
        self._pieces.learn(frame, chunk)
        passed += [frame if out is chunk else frame_of(out) for out in self._guard.feed(chunk)]
