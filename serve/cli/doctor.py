"""`specgate doctor`: every pool and request class of a configuration, what is allowed, and what to mend."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.tools.doctor.checkup import examine
from serve.tools.doctor.decider import Decider

_STYLE = {"error": "red", "warning": "yellow", "info": "cyan"}


def doctor(
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    as_json: Json = False,
) -> None:
    """Examine a configuration; exit code 1 on hazards that nothing covers."""
    report = examine(Decider.load(config))
    if as_json:
        print_json(report)
    else:
        _print(report)
    if not report["healthy"]:
        raise typer.Exit(FOUND)


def _print(report: dict[str, Any]) -> None:
    out = console()
    for name, model in report["models"].items():
        pools = list(model["pools"])
        table = Table("requests", *pools, "decision", title=name, title_justify="left", show_lines=False)
        for row in model["requests"]:
            table.add_row(" ".join(row["classes"]), *(_cell(row["pools"][pool]) for pool in pools), _decision(row))
        out.print(table)
        for pool, gain in model["gain"].items():
            out.print(f"  {pool}: {gain}")
    for each in report["findings"]:
        where = "/".join(filter(None, (each["model"], each["pool"])))
        out.print(f"[{_STYLE[each['level']]}]{each['level']:8}[/] {where}: ", end="")
        out.print(each["message"], markup=False)
        for cure in each["cures"]:
            out.print(f"         cure: {cure}", markup=False)
    out.print("[green]nothing is left uncovered[/]" if report["healthy"] else "[red]hazards that nothing covers[/]")


def _cell(verdict: dict[str, Any]) -> str:
    if verdict["allowed"]:
        return {"optimistic": "[yellow]guarded[/]", "warn": "[yellow]yes[/]"}.get(verdict["effect"], "[green]yes[/]")
    return "[red]no[/] " + ", ".join(verdict["forbidden_by"])


def _decision(row: dict[str, Any]) -> str:
    if row["refused"]:
        return "[red]refused[/]"
    way = "speculative" if row["speculative"] else "opt-out" if row["opt_out"] else "standard"
    return f"{row['pool']} ({way})"
