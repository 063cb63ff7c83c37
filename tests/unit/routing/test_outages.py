"""How long a replica that did not answer is out, and when it counts as failing again."""

from support.clock import ManualClock

from serve.routing.outages import Outages


def failing_again_at(*times_s: float) -> list[float]:
    """Returns when the replica is back, after it failed at each of these times."""
    clock = ManualClock()
    outages = Outages(clock)
    back: list[float] = []
    for time_s in times_s:
        clock.now_s = time_s
        outages.add("a")
        while outages.now():
            clock.now_s += 0.5
        back.append(clock.now_s)
    return back


def test_nobody_is_out_at_first() -> None:
    assert Outages().now() == frozenset()


def test_a_replica_is_out_for_two_seconds_and_twice_as_long_each_time_it_fails_again() -> None:
    assert failing_again_at(0, 2, 6, 14) == [2, 6, 14, 30]


def test_never_for_more_than_a_minute() -> None:
    times_s = [0.0]
    for _ in range(8):
        times_s.append(failing_again_at(*times_s)[-1])
    assert times_s[-1] - times_s[-2] == 60


def test_a_failure_of_long_ago_does_not_count() -> None:
    assert failing_again_at(0, 61) == [2, 65]
    assert failing_again_at(0, 62) == [2, 64]


def test_what_fails_while_it_is_out_is_out_no_longer() -> None:
    assert out_at(2, {0: "a", 1: "a"}) == frozenset()


def test_each_replica_has_a_time_of_its_own() -> None:
    failures = {0.0: "a", 1.0: "b"}
    assert out_at(2, failures) == {"b"}
    assert out_at(3, failures) == frozenset()


def out_at(time_s: float, failures: dict[float, str]) -> frozenset[str]:
    """Returns who is out at a time, given who failed when before it."""
    clock = ManualClock()
    outages = Outages(clock)
    for clock.now_s, url in failures.items():
        outages.add(url)
    clock.now_s = time_s
    return outages.now()
