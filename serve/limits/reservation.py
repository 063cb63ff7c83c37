"""The reservation of one request, until its usage is known."""

from collections.abc import Sequence
from typing import Literal, NamedTuple

from msgspec import Struct

from serve.limits.slice import Slice

State = Literal["open", "settled", "kept"]


class Line(NamedTuple):
    """One limit that a request meets.

    Attributes:
        held: Where it is spent.
        shadow: It is counted and refuses nothing.
    """

    held: Slice
    shadow: bool


class Reservation(Struct, eq=False, gc=False):
    """A request's reservation; it is settled or kept once, whoever asks how often.

    Attributes:
        lines: What it was taken from.
        cost: Weighted tokens that are reserved.
        state: `open`; then `settled` by real usage, or `kept` as it was, where nobody knows the usage.
    """

    lines: Sequence[Line]
    cost: float
    state: State = "open"

    def settle(self, cost: float | None) -> float | None:
        """Corrects what was reserved.

        Args:
            cost: Weighted tokens that were used; None keeps what was reserved.

        Returns:
            What is charged; None if that was done before.
        """
        if self.state != "open":
            return None
        self.state = "kept" if cost is None else "settled"
        actual = self.cost if cost is None else cost
        for held, _ in self.lines:
            if held.kind == "tokens":
                held.settle(self.cost, actual)
            elif held.kind == "concurrency":
                held.settle(1.0, 0.0)
        return actual


def amount_of(held: Slice, cost: float) -> float:
    """Returns what a request of a cost takes from a slice."""
    return cost if held.kind == "tokens" else 1.0


def reserve(lines: Sequence[Line], cost: float, now_s: float) -> Reservation | None:
    """Reserves from every slice, or from none.

    Args:
        lines: The limits that the request meets.
        cost: Weighted tokens.
        now_s: Monotonic.

    Returns:
        None if a slice is too small.
    """
    for place, (held, _) in enumerate(lines):
        if not held.take(cost if held.kind == "tokens" else 1.0, now_s):
            for other, _ in lines[:place]:
                other.undo(amount_of(other, cost))
            return None
    return Reservation(lines, cost)
