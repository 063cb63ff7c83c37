"""The files that a request crosses inside the gateway: few enough to be read at one sitting.

Only files whose functions run count, and only after a warm-up request, so that what is compiled or remembered once per
process does not. Without access control, one file of it is crossed: the principal that everybody is.
"""

import sys
from collections.abc import Iterator, Mapping
from contextlib import contextmanager
from pathlib import Path
from types import FrameType
from typing import Any

import pytest
from support.engines import chunk, frame, streaming
from support.guard_harness import tools_request
from support.guard_stack import config, post
from support.stack import running

import policies
import serve

DONE = b"data: [DONE]\n\n"
PLAIN = {"model": "m", "stream": True, "messages": [{"role": "user", "content": "hello"}]}
GUARDED = tools_request(model="m", stream=True)
PROSE = [frame(chunk({"content": word})) for word in ("It ", "is ", "sunny.")]
CALL = {
    "index": 0,
    "id": "call_1",
    "type": "function",
    "function": {"name": "get_weather", "arguments": '{"city": "Oslo", "days": 2}'},
}
TEXT_ANSWER = [*PROSE, frame(chunk({}, "stop")), DONE]
CALL_ANSWER = [*PROSE, frame(chunk({"tool_calls": [CALL]})), frame(chunk({}, "tool_calls")), DONE]

PACKAGES = tuple(Path(package.__path__[0]) for package in (serve, policies))
ENGINE_SIDE = PACKAGES[0] / "engine"


@contextmanager
def recorded(files: set[str]) -> Iterator[None]:
    """Collect the gateway's files in which functions are called in this thread."""
    codes: set[str] = set()

    def profile(caller: FrameType, event: str, _: Any) -> None:
        if event == "call":
            codes.add(caller.f_code.co_filename)

    sys.setprofile(profile)
    try:
        yield
    finally:
        sys.setprofile(None)
    for path in map(Path, codes):
        if any(path.is_relative_to(package) for package in PACKAGES) and not path.is_relative_to(ENGINE_SIDE):
            files.add(str(path.relative_to(PACKAGES[0].parent)))


# Every request passes the pool's waiting room, even if it does not wait: its tenant's counter is there, in the queue of
# its class. A guarded one also asks whether its end is long enough for a thread.
@pytest.mark.parametrize(
    ("request_body", "frames", "most"),
    # One more each for the histograms, which are apart because OpenTelemetry's own took an eighth of a stream's CPU,
    # and for the headers, the body's reader, a response's bytes and what all clients share: in files of 310 lines else.
    # The guarded one has schemas, whose limits are apart from what the policy reads, whose keywords are apart from what
    # compiles them, and frames to be read.
    [(PLAIN, TEXT_ANSWER, 29), (GUARDED, CALL_ANSWER, 48)],
    ids=["plain", "guarded"],
)
async def test_a_streaming_request_crosses_few_files(
    request_body: Mapping[str, Any], frames: list[bytes], most: int
) -> None:
    files: set[str] = set()
    engine = streaming(frames, pause_s=0.01)
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        await post(stack.url, request_body)
        with recorded(files):
            status, _, body = await post(stack.url, request_body)
    assert status == 200
    assert body.endswith(DONE)
    assert len(files) <= most, "\n".join(sorted(files))
