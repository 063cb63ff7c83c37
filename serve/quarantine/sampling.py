"""Deterministic sampling of requests."""

from policies import Cell


class EveryNth:
    """Picks a fixed share of each cell's requests: every n-th one, without randomness.

    Args:
        share: Between 0 (none) and 1 (all).
    """

    def __init__(self, share: float) -> None:
        self._share = share
        self._sums: dict[Cell, float] = {}

    def due(self, cell: Cell) -> bool:
        """True if this request is one of the share."""
        total = self._sums.get(cell, 0.0) + self._share
        due = total >= 1 - 1e-9
        self._sums[cell] = total - 1 if due else total
        return due
