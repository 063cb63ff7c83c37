"""The rows of a run as tables, a plot and a file."""

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

from bench.goodput.runs import ALL_ARMS

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "goodput.json"
PLOT = ROOT / "docs" / "img" / "goodput.png"
_COLOURS = {"speculative_first": "tab:red", "standard_only": "tab:grey", "specgate": "tab:green"}
ORACLE = "The oracle knows step times, acceptance and answers, not what engines have cached: an arm can be above it."
_WIDEST = 1.6  # of the oracle's, in the plot
Rows = Sequence[Mapping[str, Any]]


def save(rows: Rows) -> None:
    """Writes the rows, one a line, and their plot."""
    RESULTS.write_text("[\n" + ",\n".join(json.dumps(row) for row in rows) + "\n]\n")
    plot(rows, PLOT)


def print_table(rows: Rows) -> None:
    """Prints the rows of one cluster: every arm's share of the oracle's throughput, by load."""
    title = f"{rows[0]['cluster']}: tokens per second, of the oracle's"
    table = Table("load", *ALL_ARMS, title=title, title_justify="left", caption=ORACLE, caption_justify="left")
    for load, shares in _by_load(rows).items():
        table.add_row(load, *(f"{shares[arm]:.3f}" for arm in ALL_ARMS))
    Console(width=160).print(table)


def plot(rows: Rows, path: Path) -> None:
    """Draws the two static arms and the load ranking beside the oracle, for each cluster.

    Args:
        rows: Of whole clusters.
        path: Of the picture.
    """
    from matplotlib.figure import Figure

    clusters = list(dict.fromkeys(row["cluster"] for row in rows))
    figure = Figure(figsize=(4.5 * len(clusters), 6), layout="constrained")
    for axes, cluster in zip(figure.subplots(1, len(clusters), sharey=True, squeeze=False)[0], clusters, strict=True):
        by_load = _by_load([row for row in rows if row["cluster"] == cluster])
        for arm, colour in _COLOURS.items():
            shares = [min(found[arm], _WIDEST) for found in by_load.values()]
            axes.plot(shares, list(by_load), "o", color=colour, label=arm)
        axes.axvline(1.0, color="black", linewidth=1, label="oracle")
        axes.set_xlim(0, _WIDEST)
        axes.grid(axis="y", alpha=0.3)
        axes.set_title(cluster)
        axes.set_xlabel("tokens per second, of the oracle's")
    axes.invert_yaxis()
    figure.legend(*axes.get_legend_handles_labels(), loc="outside lower center", ncols=len(_COLOURS) + 1)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _by_load(rows: Rows) -> dict[str, dict[str, float]]:
    found: dict[str, dict[str, float]] = {}
    for row in rows:
        found.setdefault(row["load"], {})[row["arm"]] = row["ratio_to_oracle"]
    return found
