"""The page's files: few, small, what they say they are, and nothing in them that parses a string as HTML."""

import json
import re
from hashlib import sha256

import pytest

from serve.admin.page import SECURITY_HEADERS, STATIC

MAX_BYTES = 120_000
VENDORED = json.loads((STATIC / "vendored.json").read_text())
OWN = sorted(path for path in STATIC.glob("*.js") if path.name not in {each["file"] for each in VENDORED})
# Whatever makes markup or code of a string, and styles that the CSP would stop.
FORBIDDEN = re.compile(
    r"innerHTML|outerHTML|insertAdjacentHTML|dangerouslySetInnerHTML|document\.write|\beval\b|new Function|DOMParser"
    r"|createContextualFragment|srcdoc|javascript:|style=|localStorage|document\.cookie"
)


@pytest.mark.parametrize("each", VENDORED, ids=lambda each: str(each["file"]))
def test_a_vendored_file_is_the_one_that_was_published(each: dict[str, str]) -> None:
    assert sha256((STATIC / each["file"]).read_bytes()).hexdigest() == each["sha256"]
    assert each["version"]
    assert each["licence"]
    assert each["file"] in (STATIC / "LICENCES.txt").read_text()


def test_all_that_a_browser_loads_is_small() -> None:
    loaded = [path for path in STATIC.iterdir() if path.suffix in (".html", ".css", ".js", ".svg")]
    assert sum(path.stat().st_size for path in loaded) <= MAX_BYTES
    assert sum(len(path.read_text().splitlines()) for path in OWN) <= 950


@pytest.mark.parametrize("path", OWN, ids=lambda path: str(path.name))
def test_no_own_file_makes_markup_or_code_of_a_string(path: object) -> None:
    assert FORBIDDEN.findall(path.read_text()) == []  # type: ignore[attr-defined]


def test_nothing_is_loaded_from_elsewhere() -> None:
    for path in (*OWN, STATIC / "index.html", STATIC / "style.css"):
        assert re.findall(r"https?://|//[a-z]+\.[a-z]", path.read_text()) == []


def test_the_page_has_no_inline_script_or_style() -> None:
    text = (STATIC / "index.html").read_text()
    assert re.findall(r"<script(?![^>]*\bsrc=)|<style|\son\w+=|\sstyle=", text) == []
    assert "unsafe" not in SECURITY_HEADERS["content-security-policy"]
