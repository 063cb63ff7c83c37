"""What responses say about limits."""

from serve.limits.headers import limit_headers
from serve.limits.messages import Kind, Meter, Terms
from serve.limits.slice import Line, RateSlice, SeatSlice, Slice


def line(scope: str, kind: Kind, per_minute: float, held: float, shadow: bool = False) -> Line:
    found: Slice
    if kind == "concurrency":
        found = SeatSlice(Meter(scope, kind), Terms(0.0, per_minute), 1, 0.0)
    else:
        found = RateSlice(Meter(scope, kind), Terms(per_minute / 60, per_minute / 2), 1, 0.0)
    found.held = held
    found.level = 0.0
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


def test_never_more_is_left_than_the_limit_can_hold() -> None:
    """What was given back is counted twice until the ledger has told again."""
    headers = written(line("tenant:a", "tokens", 60, 31))
    assert (headers[b"x-ratelimit-remaining-tokens"], headers[b"x-ratelimit-reset-tokens"]) == (b"30", b"0.000s")


def test_nothing_is_told_of_a_limit_of_which_the_ledger_has_told_nothing() -> None:
    """Agents slow down when they read that nothing is left."""
    unknown = line("tenant:a", "tokens", 60, 0)
    unknown.held.level = None
    assert written(unknown) == {}
