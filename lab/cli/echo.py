"""`specgate probe --echo`: whether identifiers come out of an endpoint as they went in."""

import asyncio
from typing import TYPE_CHECKING, Any

import typer
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn
from rich.table import Table

from lab.cli.findings import Finding, findings_table
from lab.probe.echo import EchoCell
from lab.probe.interval import wilson
from lab.probe.plan import ProbePlan
from serve.cli.output import FOUND, console, print_json
from serve.errors import ConfigError

if TYPE_CHECKING:
    from lab.probe.echo_run import Echo


def echo_command(plan: ProbePlan, identifiers: int, seed: int, *, stream: bool, as_json: bool) -> None:
    """Runs the canary, prints its findings, and ends with code 1 if a pool is corrupt.

    Args:
        plan: The endpoint and how to ask it.
        identifiers: Most that are asked for.
        seed: Of the identifiers.
        stream: Whether answers stream.
        as_json: Whether to print JSON.

    Raises:
        ConfigError: No answer had a call with values.
    """
    from lab.probe.echo_run import run_echo  # imports the OpenAI SDK, which takes about a second

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn())
    with Progress(*columns, console=console(), disable=as_json, transient=True) as progress:
        task = progress.add_task("copying", total=identifiers)
        echo = asyncio.run(
            run_echo(plan, EchoCell(seed, stream), identifiers, lambda count: progress.advance(task, count))
        )
    rows = _rows(echo)
    if as_json:
        print_json({"pools": rows, "errors": echo.errors})
    else:
        console().print(_table(rows))
        if echo.errors:
            console().print(f"{echo.errors} requests had no answer; the last: {echo.detail}")
    if not any(row["identifiers"] for row in rows):
        raise ConfigError(f"no answer from {plan.url} copied anything: {echo.detail or 'none has a call with values'}")
    if any(row["finding"] == "corrupt" for row in rows):
        raise typer.Exit(FOUND)


def _rows(echo: "Echo") -> list[dict[str, Any]]:
    return [
        {
            "pool": name,
            "finding": pool.test.finding,
            "identifiers": pool.test.trials,
            "corrupted": pool.test.corrupted,
            "changes": dict(pool.changes),
            "requests": pool.requests,
            "without_call": pool.lost,
            "tokens": pool.tokens,
        }
        for name, pool in sorted(echo.pools.items())
    ]


def _table(rows: list[dict[str, Any]]) -> Table:
    return findings_table("pool", "changed", ("changes", "without call", "tokens"), map(_finding, rows))


def _finding(row: dict[str, Any]) -> Finding:
    n, changed = row["identifiers"], row["corrupted"]
    changes = ", ".join(f"{count} {kind}" for kind, count in row["changes"].items())
    low, high = wilson(changed, n)
    details = (changes, str(row["without_call"]), f"{row['tokens']:,}")
    return Finding(row["pool"] or "-", row["finding"], n - changed, n, f"{low:.2%} to {high:.2%}", details)
