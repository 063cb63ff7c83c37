"""The index of decision records lists each record once, in order, and a record that it can't list is refused."""

import re

import pytest

from docs._generate.decisions import decisions
from docs._generate.pages import DOCS


def test_every_record_is_listed_once_by_number():
    found = decisions(DOCS / "adr")
    assert [each.file for each in found] == sorted(path.name for path in (DOCS / "adr").glob("0*.md"))
    assert len({each.number for each in found}) == len(found) > 50


@pytest.mark.parametrize(
    ("name", "text"),
    [
        ("0001-a.md", "# 0001: A\n\nStatus: accepted\n"),
        ("0001-a.md", "# 0002 A\n\nStatus: accepted\n"),
        ("0001-a.md", "# 0001 A\n\n## Context\n"),
        ("0001.md", "# 0001 A\n\nStatus: accepted\n"),
    ],
)
def test_a_record_without_number_title_or_status_is_refused(tmp_path, name, text):
    (tmp_path / name).write_text(text)
    with pytest.raises(ValueError, match=re.escape(name)):
        decisions(tmp_path)


def test_two_records_of_one_number_are_refused(tmp_path):
    for name in ("0001-a.md", "0001-b.md"):
        (tmp_path / name).write_text("# 0001 A\n\nStatus: accepted\n")
    with pytest.raises(ValueError, match="number of 0001"):
        decisions(tmp_path)
