"""What responses say about limits."""

from serve.limits.headers import limit_headers
from serve.limits.messages import Kind, Meter, Terms
from serve.limits.reservation import Line
from serve.limits.slice import RateSlice, SeatSlice, Slice


def line(scope: str, kind: Kind, per_minute: float, held: float, shadow: bool = False) -> Line:
    found: Slice
    if kind == "concurrency":
        found = SeatSlice(Meter(scope, kind), Terms(0.0, per_minute), 1, 0.0)
    else:
        found = RateSlice(Meter(scope, kind), Terms(per_minute / 60, per_minute / 2), 1, 0.0)
    found.held = held
    return Line(found, shadow)


def written(*lines: Line) -> dict[bytes, bytes]:
    headers: list[tuple[bytes, bytes]] = []
    for each in limit_headers(lines):
        each.write(headers)
    return dict(headers)


def test_of_each_kind_the_limit_with_the_least_left_is_told() -> None:
    assert written(
        line("tenant:a", "tokens", 60_000, 900.5),
        line("key:k", "tokens", 6_000, 1_500),
        line("key:k", "requests", 600, 10),
    ) == {
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"10",
        b"x-ratelimit-reset-requests": b"29.000s",
        b"x-ratelimit-limit-tokens": b"60000",
        b"x-ratelimit-remaining-tokens": b"900",
        b"x-ratelimit-reset-tokens": b"29.099s",
    }


def test_debt_is_told_as_nothing_left() -> None:
    assert written(line("tenant:a", "tokens", 60, -5))[b"x-ratelimit-remaining-tokens"] == b"0"


def test_shadows_and_seats_are_not_told() -> None:
    assert written(line("tenant:a", "tokens", 60, 5, shadow=True), line("tenant:a", "concurrency", 4, 4)) == {}
