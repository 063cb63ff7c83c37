"""Markdown tables."""

from collections.abc import Iterable, Sequence


def table(header: Sequence[str], rows: Iterable[Sequence[str]]) -> str:
    """Returns a table with one line a row; cells are escaped."""
    lines = [_line(header), "|" + "---|" * len(header), *map(_line, rows)]
    return "\n".join(lines)


def code(text: str) -> str:
    """Returns the text as inline code, or nothing if it is empty."""
    return f"`{text}`" if text else ""


def _line(cells: Sequence[str]) -> str:
    return "| " + " | ".join(" ".join(cell.split()).replace("|", "\\|") for cell in cells) + " |"
