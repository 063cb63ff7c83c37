"""The architecture page names modules that exist, and nothing new gathers at the root of `serve`."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_PATH = re.compile(r"`((?:serve|policies)/[\w/.]+)`")


def test_what_the_page_names_exists() -> None:
    named = set(_PATH.findall(PAGE.read_text(encoding="utf-8")))
    assert len(named) > 10
    assert [path for path in sorted(named) if not (ROOT / path).exists()] == []


def test_the_root_of_serve_holds_what_no_folder_is_about() -> None:
    modules = [path.name for path in (ROOT / "serve").glob("*.py") if path.name != "__init__.py"]
    assert sorted(modules) == ["app.py", "errors.py"]
