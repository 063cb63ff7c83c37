"""Bytes are counted in all and by owner, and every one comes back; where no memory is left, they are refused."""

import resource
from collections.abc import Iterator
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import EngineError, OutOfMemoryError, OverloadedError
from serve.http1.allowance import Allowance, connections_within_files
from serve.http1.sse import decode_chunk

PARTS = st.lists(st.tuples(st.sampled_from(["", "red", "blue"]), st.integers(0, 400)))
MB = 2**20


@given(PARTS)
def test_nobody_holds_more_than_half_and_all_together_no_more_than_all(parts: list[tuple[str, int]]) -> None:
    allowance = Allowance(max_buffered_bytes=1000)
    taken = []
    for owner, size_bytes in parts:
        if allowance.take(size_bytes, owner) is None:
            taken.append((size_bytes, owner))
        assert allowance.held_bytes == sum(size for size, _ in taken) <= 1000
        assert all(held <= 500 for held in allowance.owned_bytes.values())
    for part in taken:
        allowance.give_back(*part)
    assert (allowance.held_bytes, allowance.owned_bytes) == (0, {})


def test_bytes_that_came_before_their_owner_was_known_count_as_its_own() -> None:
    allowance = Allowance(max_buffered_bytes=1000)
    assert allowance.take(400) is None
    assert allowance.assign(400, "red") is None
    error = allowance.take(200, "red")
    assert isinstance(error, OverloadedError)
    assert "'red'" in str(error)
    assert allowance.take(200, "blue") is None


def test_where_nobody_is_known_all_of_it_is_for_everybody() -> None:
    assert Allowance(max_buffered_bytes=1000).take(1000) is None


@pytest.mark.parametrize(
    ("soft", "hard", "possible"),
    [(1024, 1024, 460), (1024, 2**20, 8192), (20_000, 20_000, 8192), (256, -1, 8192), (256, 256, 115)],
)
def test_no_more_connections_are_taken_than_files_can_be_opened(
    soft: int, hard: int, possible: int, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    limits = [(soft, hard)]
    monkeypatch.setattr(resource, "getrlimit", lambda _: limits[-1])
    monkeypatch.setattr(resource, "setrlimit", lambda _, new: limits.append(new))
    assert connections_within_files(8192) == possible
    assert ("ulimit" in caplog.text) == (possible < 8192), "the operator is told what to do"


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
