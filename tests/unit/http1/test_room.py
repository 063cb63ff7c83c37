"""What a process has no memory for is refused before msgspec sees it, which would end the process."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest

from serve.errors import EngineError, OutOfMemoryError
from serve.http1.allowance import Allowance
from serve.http1.sse import decode_chunk

MB = 2**20


@pytest.fixture
def little_room() -> Iterator[None]:
    """Lets this process take 64 MB more of addresses."""
    before = resource.getrlimit(resource.RLIMIT_AS)
    taken = int(Path("/proc/self/statm").read_text().split()[0]) * resource.getpagesize()
    resource.setrlimit(resource.RLIMIT_AS, (taken + 64 * MB, before[1]))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_AS, before)


@pytest.mark.usefixtures("little_room")
def test_a_body_for_which_there_is_no_memory_is_refused_and_a_short_one_is_taken() -> None:
    allowance = Allowance()
    assert isinstance(allowance.take(20 * MB), OutOfMemoryError)
    assert allowance.take(MB // 2) is None


@pytest.mark.usefixtures("little_room")
def test_what_others_hold_counts() -> None:
    allowance = Allowance()
    taken = [allowance.take(MB // 2) is None for _ in range(8)]
    assert taken[0]
    assert not taken[-1]


@pytest.mark.usefixtures("little_room")
def test_an_answer_for_which_there_is_no_memory_is_not_read() -> None:
    answer = b'{"choices":[],"text":"' + b"x" * 4 * MB + b'"}'
    with pytest.raises(EngineError, match="no memory"):
        decode_chunk(answer)
