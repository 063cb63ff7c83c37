"""`specgate doctor`: shows which pools a configuration allows for which requests, and what to fix."""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.config import layers
from serve.config.exposure import listening_host
from serve.tools.doctor.checkup import examine
from serve.tools.doctor.decider import Decider
from serve.tools.doctor.store import try_store

_STYLE = {"error": "red", "warning": "yellow", "info": "cyan"}


def doctor(
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    as_json: Json = False,
) -> None:
    """Examine a configuration; exit code 1 if it has hazards that nothing covers."""
    decider = Decider.load(config)
    report = examine(decider, listening_host(layers.read(config)), try_store(decider.config))
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
    for finding in report["findings"]:
        subject = "/".join(filter(None, (finding["model"], finding["pool"])))
        out.print(f"[{_STYLE[finding['level']]}]{finding['level']:8}[/] {subject}: ", end="")
        out.print(finding["message"], markup=False)
        for cure in finding["cures"]:
            out.print(f"         cure: {cure}", markup=False)
    out.print("[green]no uncovered hazards[/]" if report["healthy"] else "[red]some hazards are not covered[/]")


def _cell(pool: dict[str, Any]) -> str:
    if pool["allowed"]:
        return {"optimistic": "[yellow]guarded[/]", "warn": "[yellow]yes[/]"}.get(pool["effect"], "[green]yes[/]")
    return "[red]no[/] " + ", ".join(pool["forbidden_by"])


def _decision(row: dict[str, Any]) -> str:
    if row["refused"]:
        return "[red]refused[/]"
    mode = "speculative" if row["speculative"] else "opt-out" if row["opt_out"] else "standard"
    return f"{row['pool']} ({mode})"
