"""Transcripts of requests that were rerun, from engines and to the client: kept in memory, where an operator asks."""

import time
from collections import deque
from collections.abc import Callable, Sequence
from itertools import chain, repeat
from typing import Any

from policies import Candidate
from serve.guard.core import Guard, Verdict
from serve.stream.frame import Frame
from serve.stream.line import PASS, Stage

MOST = 50
MOST_BYTES = 32 * 1024  # of each text; a longer one loses its beginning, since faults are near the end


class Record(Stage):
    """Keeps the end of all that passes.

    Attributes:
        bytes: Of all of it.
    """

    exact = False

    def __init__(self) -> None:
        self.bytes = 0
        self._end = bytearray()

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Keeps a frame."""
        self._keep(frame.encoded())
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Keeps an answer that does not stream."""
        self._keep(body)
        return body

    def as_dict(self) -> dict[str, Any]:
        """Returns the end as text, and how many bytes before it are missing."""
        text = self._end.decode(errors="replace")
        return {"text": text, "missing_bytes": self.bytes - len(self._end)}

    def _keep(self, data: bytes) -> None:
        self.bytes += len(data)
        self._end += data[-MOST_BYTES:]
        del self._end[:-MOST_BYTES]


class Transcript:
    """One request's attempts; `keep` takes them when the request is over, if there was a rerun.

    Attributes:
        client: Keeps what goes out, as chat completions; another API's client gets it in its own words.
    """

    def __init__(self, request_id: str, engine_id: str, keep: Callable[[dict[str, Any]], None]) -> None:
        self.client = Record()
        self._ids = {"request_id": request_id, "engine_id": engine_id}
        self._keep = keep
        self._attempts: list[Record] = []

    def attempt(self) -> Record:
        """Returns what keeps what the engine of another attempt sends."""
        self._attempts.append(Record())
        return self._attempts[-1]

    def end(self, tried: Sequence[Candidate], guard: Guard) -> None:
        """Ends the transcript of a request that is over, given where its attempts ran and what judged them."""
        if len(self._attempts) < 2:
            return
        verdicts = chain(guard.verdicts, repeat(None))
        self._keep(
            {
                **self._ids,
                "at_s": round(time.time()),
                "attempts": [
                    {
                        "pool": candidate.pool,
                        "speculative": candidate.speculative,
                        **_judged(verdict),
                        **record.as_dict(),
                    }
                    for candidate, record, verdict in zip(tried, self._attempts, verdicts, strict=False)
                ],
                "client": self.client.as_dict(),
            }
        )


class NullTranscript:
    """Keeps nothing; see `Transcript`."""

    client = PASS

    def attempt(self) -> Stage:
        """Returns what keeps nothing."""
        return PASS

    def end(self, tried: Sequence[Candidate], guard: Guard) -> None:
        """Does nothing."""


NULL_TRANSCRIPT = NullTranscript()


class Transcripts:
    """The last transcripts of requests that were rerun; never written anywhere."""

    def __init__(self) -> None:
        self._last: deque[dict[str, Any]] = deque(maxlen=MOST)

    def begin(self, request_id: str, engine_id: str) -> Transcript:
        """Returns the transcript of a request that has begun."""
        return Transcript(request_id, engine_id, self._last.append)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """Returns what is kept of a request; of several with one id it is the one that `Journal.find` returns."""
        same = [kept for kept in reversed(self._last) if request_id in (kept["request_id"], kept["engine_id"])]
        return next((kept for kept in same if kept["engine_id"] == request_id), same[0] if same else None)


class NullTranscripts:
    """Keeps nothing of any request; see `Transcripts`."""

    def begin(self, request_id: str, engine_id: str) -> NullTranscript:
        """Returns what keeps nothing."""
        return NULL_TRANSCRIPT

    def get(self, request_id: str) -> None:
        """Returns None: nothing is kept."""


NULL_TRANSCRIPTS = NullTranscripts()
AnyTranscript = NullTranscript | Transcript
AnyTranscripts = NullTranscripts | Transcripts


def _judged(verdict: Verdict | None) -> dict[str, Any]:
    """Returns what was wrong with an attempt; nothing is known of one that the client did not wait for."""
    if verdict is None:
        return {"outcome": "", "defects": []}
    return {"outcome": str(verdict.outcome), "defects": [defect.detail for defect in verdict.defects]}
