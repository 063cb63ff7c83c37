"""`specgate replay`: decides recorded requests with the gateway's own code, and compares two configurations."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from serve.cli.output import FOUND, Json, console, print_json
from serve.tools.decider import Decider
from serve.tools.replay import compare, to_html


def replay(
    traffic: Annotated[Path, typer.Argument(help='JSON lines: request bodies, or {"body": {...}, "headers": {...}}.')],
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    against: Annotated[Path | None, typer.Option("--against", help="Another configuration to compare with.")] = None,
    html: Annotated[Path | None, typer.Option("--html", help="Write a report with plots to this file.")] = None,
    fail_on_change: Annotated[
        bool, typer.Option("--fail-on-change", help="Exit code 1 if a decision differs from --against.")
    ] = False,
    as_json: Json = False,
) -> None:
    """Decide recorded requests again: share speculated, load by pool, cost of advisories, differences."""
    other = Decider.load(against) if against else None
    with traffic.open("rb") as lines:
        report = compare(Decider.load(config), other, lines)
    if html is not None:
        html.write_text(to_html(report), encoding="utf-8")
    if as_json:
        print_json(report)
    else:
        _print(report)
    if fail_on_change and report["different"]:
        raise typer.Exit(FOUND)


def _print(report: dict[str, Any]) -> None:
    out = console()
    sides = [("A", report["a"]), *([("B", report["b"])] if report["b"] else [])]
    out.print(f"{report['requests']:,} requests in {report['seconds']:.2f} s, {report['invalid']} of them invalid")
    for name, side in sides:
        out.print(Text(name, "bold"), end="")
        out.print(
            f"  speculated {side['speculative_share']:.1%}, of that under the guard "
            f"{side['optimistic']:,}; opted out in the engine {side['opt_out']:,}; refused {side['refused']:,}"
        )
        table = Table("pool", "requests", "share")
        for pool, count in side["pools"].items():
            table.add_row(pool, f"{count:,}", f"{count / max(report['requests'], 1):.1%}")
        out.print(table)
        if side["advisories"]:
            table = Table("advisory", "diverted", "by it alone")
            for advisory, cost in side["advisories"].items():
                table.add_row(advisory, f"{cost['diverted']:,}", f"{cost['alone']:,}")
            out.print(table)
    if report["b"]:
        out.print(f"different decisions: {report['different']:,}", style="bold")
        table = Table("A", "B", "requests", "first line")
        for change in report["changes"]:
            table.add_row(change["a"], change["b"], f"{change['requests']:,}", str(change["first_line"]))
        out.print(table)
