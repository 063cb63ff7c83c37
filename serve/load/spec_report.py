"""The engine's own report on speculation, found in the last bytes of a response without decoding the rest.

vLLM (`per-request-spec-decode-metrics`) and our simulated engine put it into the last chunk of a stream that carries
usage, and into every whole response.
"""

import json
import re
from collections import deque
from collections.abc import Iterable, Sequence
from typing import Annotated, NamedTuple

import msgspec

from serve.stream.frame import Frame
from serve.stream.line import Stage

# Within a JSON string the quotes would be escaped: text of a model can't imitate the member.
_MEMBER = b'"speculative_decoding":'
_TOKENS = re.compile(rb'"completion_tokens":\s*(\d{1,9})\b')
_DECODER = json.JSONDecoder()
_LONGEST = 4096
_FRAMES = 4  # enough for a stream's last chunk and its end
_END_BYTES = 256 * 1024
_MOST = 10**9  # no answer has as many tokens
_Count = Annotated[int, msgspec.Meta(ge=0, lt=_MOST)]


class _Told(msgspec.Struct):
    num_spec_steps: Annotated[int, msgspec.Meta(gt=0, lt=_MOST)]
    num_accepted_draft_tokens: _Count
    num_draft_tokens: _Count


class LastFrames(Stage):
    """Keeps the end of a response, in which an engine reports.

    Attributes:
        last: The last frames, or the end of a whole answer.
    """

    def __init__(self) -> None:
        self.last: deque[bytes] = deque(maxlen=_FRAMES)

    def skim(self, data: bytes, frames: int) -> None:
        self.last.append(data)

    def feed(self, frame: Frame) -> Sequence[Frame]:
        self.last.append(frame.raw)
        return (frame,)

    def whole(self, body: bytes) -> bytes:
        """Keeps the end of a whole answer."""
        self.last.append(body[-_END_BYTES:])
        return body


class SpecReport(NamedTuple):
    """The drafts of one request."""

    steps: int
    accepted: int


def completion_tokens(parts: Iterable[bytes]) -> int | None:
    """Returns the length of the answer as the usage in the last parts of a response states it; None without usage."""
    found = _TOKENS.findall(b"".join(parts))
    return int(found[-1]) if found else None


def spec_report(parts: Iterable[bytes]) -> SpecReport | None:
    """Returns the report in the last parts of a response; None if there is none, or no draft was made."""
    data = b"".join(parts)
    start = data.rfind(_MEMBER)
    if start < 0:
        return None
    start += len(_MEMBER)
    text = data[start : start + _LONGEST].lstrip().decode("utf-8", "replace")
    try:
        found, _ = _DECODER.raw_decode(text)
    except (ValueError, RecursionError):  # cut off, or not the engine's
        return None
    try:
        reply = msgspec.convert(found, _Told)
    except msgspec.ValidationError:
        return None
    accepted = reply.num_accepted_draft_tokens
    return SpecReport(reply.num_spec_steps, accepted) if accepted <= reply.num_draft_tokens else None
