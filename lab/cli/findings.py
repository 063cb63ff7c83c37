"""The table of what was tried, which `probe`, its `--echo` and `qualify` print alike."""

from collections.abc import Iterable, Mapping
from typing import NamedTuple

from rich.table import Table
from rich.text import Text

_STYLES: Mapping[str, str] = {
    "clean": "green", "sound": "green", "passed": "green",
    "unclean": "red", "corrupt": "red", "failed": "red",
}  # fmt: skip


class Finding(NamedTuple):
    """One row.

    Attributes:
        name: Of what was tried.
        finding: In one word.
        right, n: How many were right, of how many that could be judged.
        interval: Bounds in words.
        details: More, in the order of the table's own columns.
    """

    name: str
    finding: str
    right: int
    n: int
    interval: str
    details: tuple[str, ...]


def findings_table(first: str, interval: str, details: Iterable[str], rows: Iterable[Finding]) -> Table:
    """Returns the table.

    Args:
        first: The head of the first column.
        interval: The head of the bounds.
        details: The heads of the last columns.
        rows: Its rows.
    """
    table = Table(first, "finding", "right", interval, *details)
    for row in rows:
        finding = Text(row.finding, _STYLES.get(row.finding, "yellow"))
        table.add_row(
            row.name, finding, f"{row.right:,}/{row.n:,}", row.interval, *(text or "-" for text in row.details)
        )
    return table
