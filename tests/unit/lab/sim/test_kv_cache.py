"""KV memory never holds more than it has, and finds a prefix exactly as far as it is in memory."""

from hypothesis import given
from hypothesis import strategies as st

from lab.sim.batch import Batch, SimSequence
from lab.sim.economics import Economics
from lab.sim.kv_cache import KvCache, Part

SYSTEM = Part("system", 800)


def test_a_shared_beginning_is_found_and_counted_once() -> None:
    kv = KvCache(10_000)
    one, two = [SYSTEM, Part("a", 100)], [SYSTEM, Part("b", 50)]
    kv.hold(one, 900, kv.cached(one))
    assert kv.cached(two) == 800
    kv.hold(two, 850, 800)
    assert kv.held == 800 + 100 + 50
    assert (kv.queried, kv.hits) == (1750, 800)


def test_what_lies_behind_a_gap_is_not_found() -> None:
    kv = KvCache(10_000)
    kv.hold([Part("b", 50)], 50, 0)
    assert kv.cached([SYSTEM, Part("b", 50)]) == 0


def test_a_conversation_that_has_grown_finds_what_it_had() -> None:
    kv = KvCache(10_000)
    kv.hold([Part("s", 300)], 200, 0)
    kv.release([Part("s", 300)])
    assert kv.cached([Part("s", 450)]) == 300


def test_the_prefix_that_was_needed_last_is_kept() -> None:
    kv = KvCache(1000)
    for name in ("a", "b", "a", "c"):
        parts = [Part(name, 400)]
        kv.hold(parts, 400, kv.cached(parts))
        kv.release(parts)
    assert [kv.cached([Part(name, 400)]) for name in "abc"] == [400, 0, 400]


PROMPTS = st.lists(st.tuples(st.integers(0, 3), st.integers(0, 5), st.integers(1, 400)), min_size=1, max_size=60)


@given(PROMPTS, st.integers(500, 3000), st.integers(1, 8), st.data())
def test_no_sequence_of_requests_overfills_memory_or_seats(
    prompts: list[tuple[int, int, int]], tokens: int, seats: int, data: st.DataObject
) -> None:
    batch = Batch(Economics(kv_tokens=tokens), 0, seats)
    running: list[SimSequence] = []
    for shared, session, length in prompts:
        key = (shared, session)
        batch.add(SimSequence([Part(shared, 100), Part(key, length)], Part(key, length + 20)))
        if running and data.draw(st.booleans()):
            batch.remove(running.pop(data.draw(st.integers(0, len(running) - 1))))
        for sequence, prefill_s in batch.admitted():
            assert 0 <= sequence.cached <= sequence.prompt_tokens
            assert prefill_s >= 0
            running.append(sequence)
        assert batch.running == len(running) <= seats
        assert batch.kv.held <= batch.kv.used
        assert batch.kv.used <= tokens or len(running) <= 1
    for sequence in running:
        batch.remove(sequence)
    assert batch.kv.held == 0
    assert batch.kv.used <= tokens
