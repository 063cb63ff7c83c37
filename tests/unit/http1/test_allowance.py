"""Bytes are counted in all and by owner, and every one comes back."""

from hypothesis import given
from hypothesis import strategies as st

from serve.errors import OverloadedError
from serve.http1.allowance import Allowance

PARTS = st.lists(st.tuples(st.sampled_from(["", "red", "blue"]), st.integers(0, 400)))


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
