"""A simulated replica in virtual time keeps to its own table, its seats and its prefix cache."""

import pytest

from lab.sim.economics import Economics
from lab.simulation.engine import SimEngine
from lab.simulation.request import SimRequest
from policies.step_times import PREFILL_TOKENS_PER_S, PUBLISHED


def request(session: str, output: int, prompt: int = 0, length: float = 1.0) -> SimRequest:
    return SimRequest(0.0, session, "prose", prompt, output, length=length)


@pytest.mark.parametrize("drafts", [0, 3])
@pytest.mark.parametrize("batch", [1, 4, 16, 64])
def test_a_full_batch_takes_the_table_s_time_a_step(batch: int, drafts: int) -> None:
    engine = SimEngine(Economics(), drafts, 64)
    for number in range(batch):
        engine.submit(request(f"s{number}", 1000, length=2.0), 0.0)
    assert engine.next_end_s / 500 == pytest.approx(PUBLISHED.at(batch, drafts), rel=0.02)


def test_a_request_beyond_the_seats_waits_for_the_first_to_end() -> None:
    engine = SimEngine(Economics(), 0, 1)
    one, two = request("a", 100), request("b", 100)
    engine.submit(one, 0.0)
    engine.submit(two, 0.0)
    end_s = engine.next_end_s
    assert engine.finish(end_s) is one
    assert two.first_s > end_s
    assert engine.next_end_s == pytest.approx(2 * end_s)


def test_a_turn_prefills_what_its_replica_has_not_cached() -> None:
    engine = SimEngine(Economics(), 0, 1)
    now_s = 0.0
    for prompt, missing in ((1000, 1000), (1500, 1500 - 1100)):
        turn = request("a", 100, prompt)
        engine.submit(turn, now_s)
        assert turn.first_s - now_s == pytest.approx(missing / PREFILL_TOKENS_PER_S + PUBLISHED.at(1, 0))
        now_s = engine.next_end_s
        engine.finish(now_s)
