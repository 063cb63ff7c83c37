"""Every page can be found, and nothing that a page points to is missing. `make docs` builds the site itself."""

import re
import tomllib
from functools import cache
from pathlib import Path

ROOT = Path(__file__).parents[3]
DOCS = ROOT / "docs"
PAGES = sorted(DOCS.rglob("*.md"))
ALSO = [ROOT / "README.md", ROOT / "CONTRIBUTING.md"]

FENCE = re.compile(r"^(?P<indent> *)(?P<fence>```+|~~~+).*?^(?P=indent)(?P=fence)", re.MULTILINE | re.DOTALL)
LINK = re.compile(r"\[[^\]]*\]\((?P<target>[^)\s]+)\)")
CODE = re.compile(r"`([^`\n]+)`")
REPO_PATH = re.compile(r"(?:serve|tests|deploy|policies|bench|models|docs|requirements)/[\w./*{},-]+")
REJECTED = ("serve/ray",)  # ADR 0023 names it


@cache
def prose(path: Path) -> str:
    """The page without its fenced blocks."""
    return FENCE.sub("", path.read_text(encoding="utf-8"))


def links(path: Path) -> list[tuple[str, str]]:
    """(file, anchor) of every relative link of a page."""
    targets = (match["target"] for match in LINK.finditer(prose(path)))
    relative = (target for target in targets if not re.match(r"[a-z]+:", target))
    return [(target.partition("#")[0], target.partition("#")[2]) for target in relative]


@cache
def anchors(path: Path) -> frozenset[str]:
    """The anchors of a page's headings, as GitHub makes them, and explicit ones."""
    headings = re.findall(r"^#+ (.+?)\s*$", prose(path), re.MULTILINE)
    slugs = (re.sub(r"[^\w\- ]", "", heading.lower().replace("`", "")).replace(" ", "-") for heading in headings)
    return frozenset((*slugs, *re.findall(r"^\(([\w-]+)\)=$", prose(path), re.MULTILINE)))


def pages_linked_from(path: Path) -> set[Path]:
    return {(path.parent / file).resolve() for file, _ in links(path) if file.endswith(".md")}


def name(path: Path) -> str:
    return str(path.relative_to(ROOT))


def test_every_page_is_two_clicks_from_the_index():
    first = pages_linked_from(DOCS / "index.md")
    second = {page for path in first if path.is_relative_to(DOCS) and path.exists() for page in pages_linked_from(path)}
    reached = {DOCS / "index.md"} | first | second
    assert [name(path) for path in PAGES if path not in reached] == []


def test_relative_links_lead_somewhere():
    broken = [
        f"{name(path)}: {file}#{anchor}"
        for path in (*PAGES, *ALSO)
        for file, anchor in links(path)
        if not leads_somewhere(path, file, anchor)
    ]
    assert broken == []


def leads_somewhere(path: Path, file: str, anchor: str) -> bool:
    target = (path.parent / file).resolve() if file else path
    return target.exists() and (not anchor or target.suffix != ".md" or anchor in anchors(target))


def test_links_stay_inside_docs():
    """The site holds nothing else; a file of the repository is named in backticks."""
    outside = [
        f"{name(path)}: {file}"
        for path in PAGES
        for file, _ in links(path)
        if file and not (path.parent / file).resolve().is_relative_to(DOCS)
    ]
    assert outside == []


def test_paths_of_the_repository_exist():
    missing = [
        f"{name(path)}: {place}"
        for path in (*PAGES, *ALSO)
        for code in CODE.findall(prose(path))
        if (match := REPO_PATH.match(code)) and not _exists(place := match[0])
    ]
    assert missing == []


def _exists(place: str) -> bool:
    place = place.rstrip("/.,")
    if place in REJECTED:
        return True
    if placeholder := re.search(r"[A-Z]{2,}", place):  # such as policies/advisories/ID.yaml
        return (ROOT / place[: placeholder.start()].rpartition("/")[0]).is_dir()
    if braces := re.search(r"\{([^}]*)\}", place):
        return all(_exists(place.replace(braces[0], choice)) for choice in braces[1].split(","))
    return any(ROOT.glob(place))


def test_every_page_is_in_a_toctree():
    listed = {DOCS / "index.md"}
    for path in PAGES:
        for block in re.findall(r"```\{toctree\}\n(.*?)```", path.read_text(encoding="utf-8"), re.DOTALL):
            for line in filter(None, (line.strip() for line in block.splitlines())):
                if not line.startswith(":"):
                    listed.update(path.parent.glob(f"{line}.md"))
    assert [name(path) for path in PAGES if path not in listed] == []


def test_a_page_has_one_title():
    assert [name(path) for path in PAGES if len(re.findall(r"^# ", prose(path), re.MULTILINE)) != 1] == []


def test_code_names_pages_that_exist():
    """Docstrings, comments and messages send readers to pages; pages move."""
    folders = ("serve", "policies", "bench", "deploy", "models", ".ci")
    files = [
        path for folder in folders for path in (ROOT / folder).rglob("*") if path.suffix in (".py", ".yaml", ".md", "")
    ]
    files += [ROOT / "cluster.yaml", ROOT / "Dockerfile", ROOT / "Dockerfile.cpu", ROOT / "Makefile"]
    missing = [
        f"{name(path)}: {page}"
        for path in files
        if path.is_file()
        for page in re.findall(r"\bdocs/[\w./-]+\.(?:md|png)", path.read_text(encoding="utf-8"))
        if not (ROOT / page).exists() and page != "docs/guide/intro.md"  # an example in models/, not a page of ours
    ]
    assert missing == []


def test_the_layers_are_shown_as_lint_holds_them():
    contracts = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["tool"]["importlinter"][
        "contracts"
    ]
    layers = next(contract["layers"] for contract in contracts if contract.get("containers") == ["serve"])
    shown = re.search(r"```\n(cli\n.*?)```", (ROOT / "CONTRIBUTING.md").read_text(encoding="utf-8"), re.DOTALL)
    assert shown is not None
    assert shown[1].split("\n") == [*layers, ""]
