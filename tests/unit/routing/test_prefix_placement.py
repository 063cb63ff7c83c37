"""In a pool that routes by prefix, prompts follow their beginnings, within the slots of the replicas that run."""

from contextlib import ExitStack, suppress

from serve.routing.prefix_index import BLOCK_BYTES, blocks_of
from serve.routing.prefix_placement import PrefixPlacement

A, B = "http://a:1", "http://b:1"
BLOCKS = blocks_of([b"s" * (50 * BLOCK_BYTES)])


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


def test_a_request_that_never_began_leaves_nothing_to_compute() -> None:
    placement = PrefixPlacement(lambda: {A: 9, B: 9})
    with placement.at(A, BLOCKS):
        pass
    with suppress(OSError), placement.at(A, blocks_of([b"x" * (200 * BLOCK_BYTES)])):
        raise OSError
    assert placement.choose(BLOCKS) == A
