"""A fixed share of requests, without chance."""

from policies import Cell


class Shares:
    """Picks a fixed share of the requests of each cell: every n-th, without chance.

    Args:
        share: Between 0 (none) and 1 (all).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._sums: dict[Cell, float] = {}

    def due(self, cell: Cell) -> bool:
        """Whether this request is one of the share."""
        reached = self._sums.get(cell, 0.0) + self._share
        due = reached >= 1 - 1e-9
        self._sums[cell] = reached - due
        return due
