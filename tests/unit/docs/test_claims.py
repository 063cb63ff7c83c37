"""The page of claims names every advisory, and no story or test that does not exist."""

import re
from pathlib import Path

from policies import load_advisories
from serve.config.compiled_policy import SHIPPED_ADVISORIES
from tests.unit.policies.test_stories import STORIES

ROOT = Path(__file__).parents[3]
PAGE = (ROOT / "docs" / "explanation" / "claims.md").read_text()


def held_by() -> set[str]:
    """What the page says its rows are held by: the cells behind the second one."""
    tables = PAGE.split("## The judge")[0]
    rows = [line.strip("|").split("|") for line in tables.splitlines() if line.startswith("| ")]
    return {name.strip() for row in rows if row[0].strip() != "finding" for cell in row[2:] for name in cell.split(";")}


def test_every_advisory_is_on_the_page() -> None:
    shipped = {advisory.id for advisory in load_advisories(SHIPPED_ADVISORIES)}
    assert shipped - set(re.findall(r"`([^`\s]+)`", PAGE)) == set()


def test_every_story_and_test_that_it_names_exists() -> None:
    functions = {
        f"`{name}`"
        for path in (ROOT / "tests").rglob("test_*.py")
        for name in re.findall(r"def (test_\w+)", path.read_text())
    }
    assert held_by() - {story.name for story in STORIES} - functions - {""} == set()
