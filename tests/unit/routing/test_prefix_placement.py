"""In a pool that routes by prefix, prompts follow their beginnings, within the slots of the replicas that run."""

import subprocess
import sys
from array import array
from contextlib import ExitStack, suppress

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.routing.prefix_placement import BLOCK_BYTES, PrefixIndex, PrefixPlacement, blocks_of

A, B = "http://a:1", "http://b:1"
BLOCKS = blocks_of([b"s" * (50 * BLOCK_BYTES)])
SYSTEM = b"s" * (8 * BLOCK_BYTES)
IDLE = {"a": 0, "b": 0, "c": 0}


def test_prompts_with_one_beginning_share_a_replica_until_it_has_no_slot() -> None:
    placement = PrefixPlacement(lambda: {A: 2, B: 2})
    with ExitStack() as held:
        first = placement.choose(BLOCKS)
        held.enter_context(placement.at(first, BLOCKS))
        assert placement.choose(BLOCKS) == first
        held.enter_context(placement.at(first, BLOCKS))
        assert placement.choose(BLOCKS) == ({A, B} - {first}).pop()
    assert placement.choose(BLOCKS) == first


def test_the_replica_that_served_counts_not_the_one_that_was_wanted() -> None:
    placement = PrefixPlacement(lambda: {A: 2, B: 2})
    with placement.at(B, BLOCKS):
        pass
    assert placement.choose(BLOCKS) == B


def test_nothing_is_named_where_there_is_no_choice() -> None:
    assert PrefixPlacement(lambda: {A: 2}).choose(BLOCKS) == ""
    assert PrefixPlacement(dict).choose(BLOCKS) == ""
    full = PrefixPlacement(lambda: {A: 1, B: 1})
    with full.at(A, BLOCKS), full.at(B, BLOCKS):
        assert full.choose(BLOCKS) == ""


def test_a_replica_that_is_gone_is_not_chosen() -> None:
    running = {A: 2, B: 2}
    placement = PrefixPlacement(lambda: running)
    with placement.at(B, BLOCKS):
        pass
    del running[B]
    running["http://c:1"] = 2
    assert placement.choose(BLOCKS) in running


def test_a_replica_that_comes_back_empty_counts_as_empty_even_if_one_was_left_alone() -> None:
    running = {A: 2, B: 2}
    placement = PrefixPlacement(lambda: running)
    with placement.at(B, BLOCKS):
        pass
    del running[B]
    assert placement.choose(BLOCKS) == ""
    with placement.at(A, BLOCKS):
        pass
    running[B] = 2
    assert placement.choose(BLOCKS) == A


def test_what_a_replica_has_yet_to_compute_sends_others_elsewhere_until_the_answer_begins() -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9})
    short, long = (blocks_of([name * (count * BLOCK_BYTES)]) for name, count in ((b"s", 20), (b"l", 100)))
    with placement.at(A, short):
        pass
    computing = placement.at(A, long)
    with computing:
        assert placement.choose(short) == B
        computing.begun()
        assert placement.choose(short) == A
    assert placement.choose(short) == A


def test_a_replica_that_computes_long_still_has_what_it_would_take_as_long_to_compute_elsewhere() -> None:
    """To compute a prompt again delays whoever comes after, to wait does not: it is worth twice the wait."""
    placement = PrefixPlacement(lambda: {A: 9, B: 9})
    known, other = (blocks_of([name * (count * BLOCK_BYTES)]) for name, count in ((b"k", 100), (b"o", 150)))
    with placement.at(A, known):
        pass
    with placement.at(A, other):
        assert placement.choose(known) == A


@pytest.mark.parametrize(
    ("kept_tokens", "is_there"),
    [(100_000, True), (20_000, False), (None, True), (10**12, True)],
    ids=["as it is kept", "as the replica has forgotten it", "by default", "of a huge cache"],
)
def test_a_prompt_is_remembered_for_as_long_as_its_replica_keeps_it(kept_tokens: int | None, is_there: bool) -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9}, lambda _: kept_tokens)
    for prompt in (BLOCKS, blocks_of([b"o" * (100 * BLOCK_BYTES)])):
        with placement.at(B, prompt):
            pass
    with placement.at(A, BLOCKS[:25]):
        pass
    assert placement.choose(BLOCKS) == (B if is_there else A)


def test_a_prompt_that_another_gateway_sent_is_found_again() -> None:
    slots = {A: 9, B: 9}
    one, other = PrefixPlacement(lambda: slots), PrefixPlacement(lambda: slots)
    with one.at(B, BLOCKS):
        pass
    assert one.report() == ((B, array("I", BLOCKS).tobytes()),)
    with one.at(A, BLOCKS[:3]):
        pass
    other.merge([(B, array("I", BLOCKS).tobytes()), *one.report()])
    assert other.choose(BLOCKS) == B
    assert one.report() == other.report() == ()


def test_what_another_gateway_has_to_do_on_a_replica_counts_until_it_tells_otherwise() -> None:
    one, other = (PrefixPlacement(lambda: {A: 9, B: 9}) for _ in range(2))
    placed = one.at(A, BLOCKS)
    with placed:
        other.merge((), one.doing())
        assert other.choose(BLOCKS[:10]) == B
        placed.begun()
        other.merge((), one.doing())
        assert 0 < one.doing()[A] < 1, "the request itself"
    assert one.doing() == {}
    other.merge(one.report(), one.doing())
    assert other.choose(BLOCKS[:10]) == A


def test_of_many_prompts_other_gateways_are_told_the_last() -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9})
    for number in range(100):
        with placement.at(A, [number] * 2000):
            pass
    told = [array("I", blocks)[0] for _, blocks in placement.report()]
    assert told == [*range(84, 100)]
    assert placement.report() == ()


def test_the_blocks_of_a_prompt_are_the_same_in_every_gateway() -> None:
    script = "from serve.routing.prefix_placement import blocks_of; print(blocks_of([b'x' * 4096], 'salt'))"
    told = {subprocess.run([sys.executable, "-c", script], capture_output=True, text=True).stdout for _ in range(2)}
    assert told == {f"{blocks_of([b'x' * 4096], 'salt')}\n"}


def test_of_a_cache_without_end_no_more_than_a_part_is_remembered() -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9}, lambda _: 10**12)
    for url, blocks in ((A, range(100_000)), (B, range(1_000)), (A, range(200_000, 300_000))):
        with placement.at(url, blocks):
            pass
    assert placement.choose(range(2_000)) == B


def test_a_request_that_never_began_leaves_nothing_to_compute() -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9})
    with placement.at(A, BLOCKS):
        pass
    with suppress(OSError), placement.at(A, blocks_of([b"x" * (200 * BLOCK_BYTES)])):
        raise OSError
    assert placement.choose(BLOCKS) == A


def test_a_prompt_goes_where_its_beginning_is() -> None:
    index = PrefixIndex(lambda _: 8192)
    index.sent("b", blocks_of([SYSTEM, b"one"]))
    assert index.choose(blocks_of([SYSTEM, b"two"]), IDLE) == "b"


def test_a_hot_prompt_splits_once_its_replica_is_busier_than_it_is_worth() -> None:
    index = PrefixIndex(lambda _: 8192)
    blocks = blocks_of([SYSTEM])
    index.sent("b", blocks)
    assert index.choose(blocks, {**IDLE, "b": 7}) == "b"
    assert index.choose(blocks, {**IDLE, "b": 9}) in ("a", "c")


def test_a_full_replica_is_left_out() -> None:
    index = PrefixIndex(lambda _: 8192)
    index.sent("b", blocks_of([SYSTEM]))
    assert index.choose(blocks_of([SYSTEM]), {"a": 3, "c": 5}) == "a"
    assert index.choose(blocks_of([SYSTEM]), {}) is None


def test_prompts_that_nobody_knows_spread_over_replicas() -> None:
    index = PrefixIndex(lambda _: 8192)
    for number in range(30):
        blocks = blocks_of([b"%d" % number * (4 * BLOCK_BYTES)])
        replica = index.choose(blocks, IDLE)
        assert replica is not None
        index.sent(replica, blocks)
    assert {len(index._replicas[name]) // 40 for name in IDLE} <= {1, 2}


def test_what_lies_behind_another_beginning_is_another_block() -> None:
    own = b"o" * BLOCK_BYTES
    assert blocks_of([SYSTEM, own])[-1] != blocks_of([b"x" * len(SYSTEM), own])[-1]


def test_a_replica_that_is_gone_is_forgotten() -> None:
    index = PrefixIndex(lambda _: 8192)
    index.sent("b", blocks_of([SYSTEM]))
    index.keep({"a", "c"})
    assert index.known("b", blocks_of([SYSTEM])) == 0


TEXTS = st.lists(st.binary(max_size=3 * BLOCK_BYTES), max_size=5)


@given(TEXTS, st.data())
def test_blocks_do_not_care_how_a_prompt_is_cut(texts: list[bytes], data: st.DataObject) -> None:
    whole = b"".join(texts)
    place = data.draw(st.integers(0, len(whole)))
    assert blocks_of(texts) == blocks_of([whole]) == blocks_of([whole[:place], whole[place:]])


@given(TEXTS, TEXTS)
def test_a_longer_prompt_has_the_blocks_of_its_beginning(first: list[bytes], more: list[bytes]) -> None:
    start = blocks_of(first)
    assert blocks_of([*first, *more])[: len(start)] == start


OPERATIONS = st.lists(st.tuples(st.sampled_from("abc"), st.lists(st.integers(0, 40), max_size=12)), max_size=80)


@given(OPERATIONS, st.integers(1, 20), st.dictionaries(st.sampled_from("abc"), st.integers(0, 50)))
def test_memory_is_bounded_and_only_replicas_with_room_are_chosen(
    operations: list[tuple[str, list[int]]], kept: int, requests: dict[str, int]
) -> None:
    index = PrefixIndex(lambda _: kept)
    for replica, blocks in operations:
        index.sent(replica, blocks)
        assert all(len(there) <= kept for there in index._replicas.values())
        assert 0 <= index.known(replica, blocks) <= len(blocks)
        chosen = index.choose(blocks, requests)
        assert chosen in requests if requests else chosen is None


PROMPTS = st.lists(st.text("ab", max_size=8), max_size=30)


@given(PROMPTS, st.text("ab", max_size=8))
def test_what_a_replica_has_is_found_whatever_it_was_sent_and_has_forgotten(prompts: list[str], asked: str) -> None:
    def chained(prompt: str) -> list[int]:
        return [hash(prompt[: end + 1]) for end in range(len(prompt))]

    index = PrefixIndex(lambda _: 6)
    for prompt in prompts:
        index.sent("a", chained(prompt))
    blocks = chained(asked)
    one_by_one = [index.known("a", [block]) for block in blocks]
    assert one_by_one == sorted(one_by_one, reverse=True)
    assert index.known("a", blocks) == sum(one_by_one)
