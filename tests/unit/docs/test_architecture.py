"""The tree printed in the architecture page is the tree on disk."""

import re
from pathlib import Path

ROOT = Path(__file__).parents[3]
PAGE = ROOT / "docs" / "explanation" / "architecture.md"
_MODULE = re.compile(r"^  ((?:serve|policies)/\S+\.py) +\S", re.MULTILINE)


def test_the_printed_tree_is_the_tree_on_disk() -> None:
    printed = _MODULE.findall(PAGE.read_text(encoding="utf-8"))
    modules = (path for top in ("serve", "policies") for path in (ROOT / top).rglob("*.py"))
    on_disk = {str(path.relative_to(ROOT)) for path in modules if path.name != "__init__.py"}
    assert set(printed) == on_disk
    assert len(printed) == len(on_disk)


def test_the_root_of_serve_holds_what_no_folder_is_about() -> None:
    modules = [path.name for path in (ROOT / "serve").glob("*.py") if path.name != "__init__.py"]
    assert sorted(modules) == ["app.py", "errors.py"]
