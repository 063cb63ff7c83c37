"""Transcripts of requests that were rerun, from engines and to the client: kept in memory, where an operator asks."""

import time
from collections import OrderedDict
from collections.abc import Sequence
from itertools import chain, repeat
from typing import Any

from policies import Candidate
from serve.guard.core import Guard, Verdict
from serve.stream.frame import Frame
from serve.stream.line import Stage

MOST = 50
MOST_BYTES = 32 * 1024  # of each text; a longer one loses its beginning, since faults are near the end


class Text:
    """The end of a text that grows.

    Attributes:
        bytes: Of the whole text.
    """

    def __init__(self) -> None:
        self.bytes = 0
        self._end = bytearray()

    def add(self, data: bytes) -> None:
        self.bytes += len(data)
        self._end += data[-MOST_BYTES:]
        del self._end[:-MOST_BYTES]

    def as_dict(self) -> dict[str, Any]:
        """Returns the end as text, and how many bytes before it are missing."""
        text = self._end.decode(errors="replace")
        return {"text": text, "missing_bytes": self.bytes - len(self._end)}


class Transcript:
    """One request's attempts.

    Attributes:
        attempts: What each engine sent.
        client: What went out, as chat completions; another API's client gets it in its own words.
    """

    def __init__(self) -> None:
        self.attempts: list[Text] = []
        self.client = Text()

    def begin(self) -> Text:
        """Returns the text of another attempt."""
        self.attempts.append(Text())
        return self.attempts[-1]


class Record(Stage):
    """Adds all that passes to a text.

    Args:
        text: Of a transcript.
    """

    exact = False
    wants_rest = False

    def __init__(self, text: Text) -> None:
        self._text = text

    def feed(self, frame: Frame) -> Sequence[Frame]:
        """Adds a frame."""
        self._text.add(frame.encoded())
        return (frame,)


class Transcripts:
    """The last transcripts of requests that were rerun, by request id; never written anywhere."""

    def __init__(self) -> None:
        self._kept: OrderedDict[str, dict[str, Any]] = OrderedDict()

    def keep(self, request_id: str, transcript: Transcript, tried: Sequence[Candidate], guard: Guard) -> None:
        """Keeps the transcript of a request that is over if there was a rerun, and forgets the oldest one.

        Args:
            request_id: The request's.
            transcript: Of its attempts.
            tried: Where they ran.
            guard: Judged them.
        """
        if len(transcript.attempts) < 2:
            return
        verdicts = chain(guard.verdicts, repeat(None))
        self._kept[request_id] = {
            "request_id": request_id,
            "at_s": round(time.time()),
            "attempts": [
                {"pool": candidate.pool, "speculative": candidate.speculative, **_judged(verdict), **text.as_dict()}
                for candidate, text, verdict in zip(tried, transcript.attempts, verdicts, strict=False)
            ],
            "client": transcript.client.as_dict(),
        }
        self._kept.move_to_end(request_id)
        if len(self._kept) > MOST:
            self._kept.popitem(last=False)

    def get(self, request_id: str) -> dict[str, Any] | None:
        """Returns what is kept of a request."""
        return self._kept.get(request_id)


def _judged(verdict: Verdict | None) -> dict[str, Any]:
    """Returns what was wrong with an attempt; nothing is known of one that the client did not wait for."""
    if verdict is None:
        return {"outcome": "", "defects": []}
    return {"outcome": str(verdict.outcome), "defects": [defect.detail for defect in verdict.defects]}
