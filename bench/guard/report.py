"""The benchmark's figures as tables, a plot and a file."""

import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict
from pathlib import Path
from typing import Any

from rich.console import Console
from rich.table import Table

ROOT = Path(__file__).parents[2]
RESULTS = ROOT / "bench" / "results" / "guard.json"
PLOT = ROOT / "docs" / "img" / "guard.png"
Row = Mapping[str, Any]
Sections = dict[str, list[Row]]


def plain(sections: Mapping[str, Sequence[Any]]) -> Sections:
    """Dataclasses as mappings."""
    return {title: [asdict(row) for row in rows] for title, rows in sections.items()}


def tables(sections: Sections) -> None:
    """Print a table for each section."""
    for title, rows in sections.items():
        table = Table(title=title, title_justify="left")
        for name in rows[0]:
            table.add_column(name, justify="right")
        for row in rows:
            table.add_row(*map(_shown, row.values()))
        Console(width=160).print(table)


def _shown(value: Any) -> str:
    if isinstance(value, float):
        return f"{value:.3f}" if abs(value) < 1 else f"{value:.1f}"
    return "no" if value is None else str(value)


def saved(path: Path = RESULTS) -> Sections:
    """The figures of earlier runs; none if there are none."""
    figures: Sections = json.loads(path.read_text(encoding="utf-8")) if path.exists() else {}
    return figures


def save(sections: Sections, path: Path = RESULTS) -> None:
    """Write the figures."""
    path.parent.mkdir(parents=True, exist_ok=True)
    path.write_text(json.dumps(sections, indent=1) + "\n", encoding="utf-8")


def plot(sections: Sections, path: Path = PLOT) -> None:
    """Broken answers with and without the guard; latency by way; requests to quarantine."""
    from matplotlib.figure import Figure

    charts = {"correctness": _broken, "latency": _latency, "quarantine": _detection}
    measured = [title for title in charts if sections.get(title)]
    if not measured:
        return
    figure = Figure(figsize=(4.5 * len(measured), 4), layout="constrained")
    for axes, title in zip(figure.subplots(1, len(measured), squeeze=False)[0], measured, strict=True):
        charts[title](axes, sections[title])
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)


def _broken(axes: Any, rows: Sequence[Row]) -> None:
    columns = {"straight from the engine": "wrong_unguarded", "through specgate": "in_vain"}
    _bars(
        axes,
        [{**row, "in_vain": row["wrong"] + row["errors"]} for row in rows],
        columns,
        [f"{row['fault_rate']:.0%}" for row in rows],
    )
    axes.set(xlabel="faulty answers of the engine", title=f"Broken, lost or refused of {rows[0]['requests']} requests")


def _latency(axes: Any, rows: Sequence[Row]) -> None:
    columns = {"first bytes": "first_bytes_ms", "first call": "first_call_ms", "end": "end_ms"}
    _bars(axes, rows, columns, [row["way"] for row in rows])
    axes.set(ylabel="ms, median", title="Streamed tool calls, 10 ms a step")


def _bars(axes: Any, rows: Sequence[Row], columns: Mapping[str, str], ticks: Sequence[str]) -> None:
    """A group of bars for each row, a bar for each column."""
    width = 0.8 / len(columns)
    for place, (label, name) in enumerate(columns.items()):
        places = [number + (place - (len(columns) - 1) / 2) * width for number in range(len(rows))]
        bars = axes.bar(places, [row[name] for row in rows], width, label=label)
        axes.bar_label(bars, fmt="%.0f", fontsize=7)
    axes.set_xticks(range(len(rows)), ticks)
    axes.legend()


def _detection(axes: Any, rows: Sequence[Row]) -> None:
    found = [row for row in rows if row["out_after"] is not None]
    axes.scatter([100 * row["fault_rate"] for row in found], [row["out_after"] for row in found])
    axes.set(xlabel="faulty answers, %", ylabel="requests", yscale="log", title="Requests until quarantine")
    axes.grid(alpha=0.3, which="both")
