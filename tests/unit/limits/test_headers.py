"""What responses say about limits."""

from serve.limits.ledger_messages import Kind, LimitId, LimitTerms
from serve.limits.request_limits import limit_headers
from serve.limits.slice import RateSlice, SeatSlice, Slice


def limit(scope: str, kind: Kind, per_minute: float, held: float, shadow: bool = False) -> Slice:
    found: Slice
    if kind == "concurrency":
        found = SeatSlice(LimitId(scope, kind), LimitTerms(0.0, per_minute), 1, 0.0)
    else:
        found = RateSlice(LimitId(scope, kind), LimitTerms(per_minute / 60, per_minute / 2), 1, 0.0)
    found.held = held
    found.level, found.shadow = 0.0, shadow
    return found


def written(*slices: Slice) -> dict[bytes, bytes]:
    headers: list[tuple[bytes, bytes]] = []
    for each in limit_headers(slices):
        each.write(headers)
    return dict(headers)


def test_of_each_kind_the_limit_with_the_least_left_is_told() -> None:
    assert written(
        limit("tenant:a", "tokens", 60_000, 900.5),
        limit("key:k", "tokens", 6_000, 1_500),
        limit("key:k", "requests", 600, 10),
    ) == {
        b"x-ratelimit-limit-requests": b"600",
        b"x-ratelimit-remaining-requests": b"10",
        b"x-ratelimit-reset-requests": b"29.000s",
        b"x-ratelimit-limit-tokens": b"60000",
        b"x-ratelimit-remaining-tokens": b"900",
        b"x-ratelimit-reset-tokens": b"29.099s",
    }


def test_debt_is_told_as_nothing_left() -> None:
    assert written(limit("tenant:a", "tokens", 60, -5))[b"x-ratelimit-remaining-tokens"] == b"0"


def test_shadows_and_seats_are_not_told() -> None:
    assert written(limit("tenant:a", "tokens", 60, 5, shadow=True), limit("tenant:a", "concurrency", 4, 4)) == {}


def test_never_more_is_left_than_the_limit_can_hold() -> None:
    """What was given back is counted twice until the ledger has told again."""
    headers = written(limit("tenant:a", "tokens", 60, 31))
    assert (headers[b"x-ratelimit-remaining-tokens"], headers[b"x-ratelimit-reset-tokens"]) == (b"30", b"0.000s")


def test_nothing_is_told_of_a_limit_of_which_the_ledger_has_told_nothing() -> None:
    """Agents slow down when they read that nothing is left."""
    unknown = limit("tenant:a", "tokens", 60, 0)
    unknown.level = None
    assert written(unknown) == {}
