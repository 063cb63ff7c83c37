"""Summarizes measurements as medians, a Markdown table and a plot."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from statistics import median

from bench.gateway import sides
from bench.gateway.runner import Measurement, Workload
from bench.gateway.traffic import shapes


@dataclass(frozen=True)
class Row:
    """Medians of one side under one workload; `added_*` is relative to the upstream by itself."""

    side: str
    cell: str
    per_s: float
    added_p50_ms: float
    added_p99_ms: float
    added_first_byte_ms: float
    cpu_ms: float
    cpu_us_per_chunk: float
    cpu_ratio: float | None
    rss_mb: float
    exact: bool


def summarize(runs: Sequence[Measurement]) -> list[Row]:
    """Returns medians over the rounds, one row per side and workload, in the order of the first runs."""
    cells: dict[str, dict[str, list[Measurement]]] = {}
    for run in runs:
        cells.setdefault(run.cell, {}).setdefault(run.side, []).append(run)
    complete = {cell: by_side for cell, by_side in cells.items() if sides.DIRECT in by_side}
    return [_row(cell, side, by_side) for cell, by_side in complete.items() for side in by_side]


def _row(cell: str, side: str, by_side: Mapping[str, Sequence[Measurement]]) -> Row:
    def middle(name: str, of: str = side) -> float:
        return float(median(getattr(run, name) for run in by_side[of]))

    def added(name: str) -> float:
        return middle(name) - middle(name, sides.DIRECT)

    ours = middle("cpu_ms", sides.SPECGATE) if sides.SPECGATE in by_side else 0.0
    return Row(
        side=side, cell=cell, per_s=middle("per_s"),
        added_p50_ms=added("p50_ms"), added_p99_ms=added("p99_ms"), added_first_byte_ms=added("first_byte_p50_ms"),
        cpu_ms=middle("cpu_ms"), cpu_us_per_chunk=middle("cpu_ms") * 1000 / shapes()[Workload.parse(cell).shape].chunks,
        cpu_ratio=middle("cpu_ms") / ours if ours else None,
        rss_mb=middle("rss_mb"), exact=all(run.exact == 1.0 for run in by_side[side]),
    )  # fmt: skip


_HEAD = (
    "| side | answers/s | added p50 ms | added p99 ms | added first byte ms | CPU ms per answer | µs per chunk "
    "| CPU, specgate = 1 | RSS MB | bytes untouched |\n|---|---|---|---|---|---|---|---|---|---|"
)


def markdown(rows: Sequence[Row], missing: Mapping[str, str]) -> str:
    """Returns one table per workload, then a list of what could not be measured."""
    parts = []
    for cell in dict.fromkeys(row.cell for row in rows):
        lines = "\n".join(_line(row) for row in rows if row.cell == cell)
        parts.append(f"### {cell}\n{_HEAD}\n{lines}")
    if missing:
        parts.append("Not measured:\n" + "\n".join(f"- {name}: {why}" for name, why in missing.items()))
    return "\n\n".join(parts)


def _line(row: Row) -> str:
    if row.side == sides.DIRECT:
        return f"| {row.side} | {row.per_s:.0f} | | | | | | | | |"
    ratio = "" if row.cpu_ratio is None else f"{row.cpu_ratio:.2f}"
    return (
        f"| {row.side} | {row.per_s:.0f} | {row.added_p50_ms:.2f} | {row.added_p99_ms:.2f} "
        f"| {row.added_first_byte_ms:.2f} | {row.cpu_ms:.3f} | {row.cpu_us_per_chunk:.1f} | {ratio} "
        f"| {row.rss_mb:.0f} | {'yes' if row.exact else 'no'} |"
    )


def plot(rows: Sequence[Row], path: Path) -> None:
    """Plot CPU per answer, one panel per workload; on a logarithmic scale because the sides are far apart."""
    from matplotlib.figure import Figure

    cells = list(dict.fromkeys(row.cell for row in rows if row.side != sides.DIRECT))
    if not cells:
        return
    figure = Figure(figsize=(4.2 * min(len(cells), 4), 2.8 * -(-len(cells) // 4)), layout="constrained")
    for number, cell in enumerate(cells, 1):
        axes = figure.add_subplot(-(-len(cells) // 4), min(len(cells), 4), number)
        shown = sorted((r for r in rows if r.cell == cell and r.side != sides.DIRECT), key=lambda r: -r.cpu_ms)
        colours = ["tab:orange" if row.side.startswith(sides.SPECGATE) else "tab:blue" for row in shown]
        bars = axes.barh([row.side for row in shown], [row.cpu_ms for row in shown], color=colours)
        axes.bar_label(bars, fmt="%.2f", padding=2, fontsize=7)
        axes.set(title=cell, xlabel="CPU ms per answer", xscale="log")
        axes.margins(x=0.25)
        axes.tick_params(labelsize=7)
    path.parent.mkdir(parents=True, exist_ok=True)
    figure.savefig(path, dpi=110)
