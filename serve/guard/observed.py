"""An engine's response that the guard judges without touching it."""

from collections.abc import Mapping, Sequence
from typing import Any

from serve.config.pool import ModelConfig
from serve.errors import EngineError
from serve.guard.core import Guard, WholeGuard
from serve.guard.fault import guard_fault
from serve.guard.response import GuardedStream
from serve.guard.slices import LONG_BYTES, in_slices
from serve.http1.sse import decode_chunk
from serve.request.beside import beside
from serve.stream.frame import Frame
from serve.stream.line import Check


class ObservedResponse(Check):
    """A response that reaches the client untouched; the guard gets a copy of its bytes.

    Args:
        model: The model that responds; its guard is in mode `observe`.
        request: The body of the request.
        streamed: True for an SSE stream.
    """

    def __init__(self, model: ModelConfig, request: Mapping[str, Any], *, streamed: bool) -> None:
        self._whole_guard = None if streamed else WholeGuard(model.guard, request, grammar=model.grammar)
        self.guard = (
            self._whole_guard.guard if self._whole_guard else Guard(model.guard, request, grammar=model.grammar)
        )
        self._stream = GuardedStream(self.guard)
        self._body = b""
        self.limit_bytes = self._stream.limit_bytes
        self.slow = self._stream.slow

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Shows a frame to the guard and returns it."""
        if not self._stream.over:
            self._stream.feed(frame)
            self.slow = self._stream.slow
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Takes a whole response, which `finish_response` checks."""
        self._body = body
        return body

    async def finish_response(self, failure: EngineError | None = None) -> None:
        """Ends the response.

        Args:
            failure: The engine's fault, if that ended it.
        """
        if self._whole_guard is None or failure is not None:
            await beside(self._stream.long, self._stream.finish_attempt, failure)
            return
        is_long = len(self._body) >= LONG_BYTES or self.guard.takes_long
        try:
            completion = await beside(is_long, decode_chunk, self._body)
            await in_slices(self._whole_guard.judge(completion), aside=is_long)
        except EngineError as error:
            self._stream.finish_attempt(error)
        except BaseException:  # noqa: BLE001 - logged, reported and an error for the client
            guard_fault(self.guard, 0)
