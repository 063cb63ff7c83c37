"""The generated parts of the reference pages.

A page is written by hand except for blocks between two comments:

    <!-- generated: metrics -->
    <!-- end generated -->
"""

import re
from collections.abc import Callable
from functools import partial
from pathlib import Path

from docs._generate import cli, configuration, http_api, metrics
from policies import load_advisories
from serve.admin.routes import DATA_PORT, DOOR
from serve.cli.advisories import to_markdown
from serve.config.compiled_policy import SHIPPED_ADVISORIES

REFERENCE = Path(__file__).parents[1] / "reference"

_BLOCK = re.compile(r"(<!-- generated: (?P<name>[\w-]+) -->\n).*?(<!-- end generated -->)", re.DOTALL)

BLOCKS: dict[str, Callable[[], str]] = {
    "configuration": configuration.sections,
    "facts": configuration.facts,
    "simulator": configuration.simulator,
    "cli": cli.sections,
    "metrics": metrics.metrics_table,
    "errors": http_api.errors_table,
    "engine-fields": http_api.engine_fields_table,
    "engine-headers": http_api.engine_headers,
    "routes": partial(http_api.routes_table, DATA_PORT),
    "door": partial(http_api.routes_table, DOOR),
}
PAGES = ("configuration.md", "cli.md", "metrics.md", "http-api.md", "advisories.md")


def render(name: str) -> str:
    """Returns the page as it should be.

    Raises:
        ValueError: The page asks for a block that does not exist.
    """
    if name == "advisories.md":
        return to_markdown(load_advisories(SHIPPED_ADVISORIES))
    text = (REFERENCE / name).read_text(encoding="utf-8")
    return _BLOCK.sub(_filled, text)


def stale() -> list[Path]:
    """Returns the pages that differ from what the code says."""
    return [REFERENCE / name for name in PAGES if render(name) != (REFERENCE / name).read_text(encoding="utf-8")]


def write() -> list[Path]:
    """Rewrites the pages that are out of date and returns them."""
    outdated = stale()
    for path in outdated:
        path.write_text(render(path.name), encoding="utf-8")
    return outdated


def _filled(block: re.Match[str]) -> str:
    name = block["name"]
    if name not in BLOCKS:
        raise ValueError(f"no generator for the block {name!r}; there are {', '.join(BLOCKS)}")
    return f"{block[1]}\n{BLOCKS[name]()}\n\n{block[3]}"
