"""The generated parts of the reference pages and of the index of decision records.

A page is written by hand except for blocks between two comments:

    <!-- generated: metrics -->
    <!-- end generated -->
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs._generate import cli, configuration, decisions, http_api, metrics
from policies import load_advisories
from serve.admin.authorization import ADMIN_PORT, DATA_PORT
from serve.cli.advisories import to_markdown
from serve.config.compiled_policy import SHIPPED_ADVISORIES

DOCS = Path(__file__).parents[1]
REFERENCE = DOCS / "reference"

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[], str]] = {
    "configuration": configuration.sections,
    "facts": configuration.facts,
    "simulator": configuration.simulator,
    "common-options": cli.common_options,
    "cli": cli.sections,
    "metrics": metrics.metrics_table,
    "errors": http_api.errors_table,
    "engine-fields": http_api.engine_fields_table,
    "engine-headers": http_api.engine_headers,
    "routes": partial(http_api.routes_table, DATA_PORT),
    "admin": partial(
        http_api.routes_table, {path: rules for path, rules in ADMIN_PORT.items() if path not in DATA_PORT}
    ),
    "decisions": partial(decisions.table, DOCS / "adr"),
}
_RUNBOOKS = DOCS.parent / "serve" / "admin" / "static" / "runbooks.md"  # the dashboard links to them
_ADVISORIES = REFERENCE / "advisories.md"
PAGES = (
    *(REFERENCE / name for name in ("configuration.md", "cli.md", "metrics.md", "http-api.md")),
    _ADVISORIES,
    DOCS / "adr" / "index.md",
    _RUNBOOKS,
)


def render(page: Path) -> str:
    """Returns the page as it should be.

    Raises:
        ValueError: The page asks for a block that does not exist, or its block can't be made.
    """
    if page == _ADVISORIES:
        return to_markdown(load_advisories(SHIPPED_ADVISORIES))
    if page == _RUNBOOKS:
        return (DOCS / "how-to" / "respond-to-an-alert.md").read_text(encoding="utf-8")
    return _BLOCK.sub(_filled, page.read_text(encoding="utf-8"))


def stale() -> list[Path]:
    """Returns the pages that differ from what the code says."""
    return [page for page in PAGES if render(page) != page.read_text(encoding="utf-8")]


def write() -> list[Path]:
    """Rewrites the pages that are out of date and returns them."""
    outdated = stale()
    for page in outdated:
        page.write_text(render(page), encoding="utf-8")
    return outdated


def _filled(block: re.Match[str]) -> str:
    name = block["name"]
    if name not in BLOCKS:
        raise ValueError(f"no generator for the block {name!r}; there are {', '.join(BLOCKS)}")
    return f"{block[1]}\n{BLOCKS[name]()}\n\n{block[3]}"
