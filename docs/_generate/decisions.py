"""The index of decision records, from the records themselves."""

import re
from pathlib import Path
from typing import NamedTuple

from docs._generate import markdown

_RECORD = re.compile(r"# (?P<number>\d{4}) (?P<title>[^\n]+)\n\nStatus: (?P<status>(?:[^\n]+\n)+)")
_NAME = re.compile(r"(?P<number>\d{4})-[a-z0-9-]+\.md")


class Decision(NamedTuple):
    """One decision record."""

    number: str
    title: str
    status: str
    file: str


def decisions(folder: Path) -> list[Decision]:
    """Returns the records in a folder by number.

    Raises:
        ValueError: A file begins in another way than `# NNNN Title` and `Status: ...`, or its number is another's too.
    """
    found: dict[str, Decision] = {}
    for path in sorted(folder.glob("[0-9]*.md")):
        name = _NAME.fullmatch(path.name)
        head = _RECORD.match(path.read_text(encoding="utf-8"))
        if name is None or head is None or name["number"] != head["number"]:
            raise ValueError(f"{path.name} must begin with '# NNNN Title', a blank line and 'Status: ...'")
        if head["number"] in found:
            raise ValueError(f"{path.name} has the number of {found[head['number']].file}")
        found[head["number"]] = Decision(head["number"], head["title"], head["status"], path.name)
    return list(found.values())


def table(folder: Path) -> str:
    """Returns the index as a table."""
    rows = [[f"[{each.number}]({each.file})", each.title, each.status] for each in decisions(folder)]
    return markdown.table(["record", "decision", "status"], rows)
