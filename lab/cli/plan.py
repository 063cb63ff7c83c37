"""`specgate plan`: which split of replicas serves recorded traffic with the fewest GPUs."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.plan.recorded import read
from lab.plan.variants import Targets, assumptions, planned
from lab.simulation.traffic import lines_of
from serve.cli.output import FOUND, Json, console, print_json
from serve.tools.doctor.decider import Decider


def plan(
    traffic: Annotated[
        Path,
        typer.Option(
            "--traffic", help="JSON lines: a traffic file, requests as for replay, or traces of agents; gzip or plain."
        ),
    ],
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    ttft_ms: Annotated[float, typer.Option(help="Longest time to the first token, of 99 in 100.")] = 2000.0,
    tpot_ms: Annotated[float, typer.Option(help="Longest time per token after it, of 99 in 100.")] = 100.0,
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second, if the traffic has no times.")] = 10.0,
    speed: Annotated[float, typer.Option(min=0.001, help="Times faster than recorded that traces go.")] = 1.0,
    most_gpus: Annotated[int, typer.Option(min=1, help="Give up beyond so many GPUs.")] = 16,
    as_json: Json = False,
) -> None:
    """Play traffic against splits of a model's replicas: how many speculative, how many standard, which draft length.

    Exit code 1 if no split up to the limit serves it.
    """
    logging.getLogger("ray.serve.specgate.load").setLevel(logging.ERROR)  # simulated drafters may collapse
    decider = Decider.load(config)
    played, assumed = read(lines_of(traffic), decider, rate, speed)
    targets = Targets(ttft_ms, tpot_ms)
    report = planned(played, decider.config, targets, most_gpus)
    report["assumptions"] = [*assumptions(decider.config, targets), *assumed]
    if as_json:
        print_json(report)
    else:
        _print(report)
    if report["best"] is None:
        raise typer.Exit(FOUND)


def _print(report: dict[str, Any]) -> None:
    out = console()
    table = Table(
        "GPUs",
        "speculative",
        "standard",
        "drafts",
        "tokens/s",
        "TTFT p99 ms",
        "per token p99 ms",
        "serves",
        title="simulated, not measured",
    )
    for row in report["variants"]:
        table.add_row(
            f"{row['gpus']}", f"{row['speculative']}", f"{row['standard']}", f"{row['draft_length'] or '-'}",
            f"{row['tokens_per_s']:,.0f}", f"{row['ttft_ms']['p99']:,.0f}", f"{row['tpot_ms']['p99']:,.1f}",
            "yes" if row["serves"] else f"no, {row['refused']} refused" if row["refused"] else "no",
        )  # fmt: skip
    out.print(table)
    best = report["best"]
    if best is None:
        out.print("No split that was played serves this traffic.")
    else:
        out.print(
            f"[bold]{best['gpus']} GPU{'s' * (best['gpus'] > 1)}[/bold] for {report['model']}: "
            f"{best['standard']} standard and {best['speculative']} speculative replicas"
            + (f" that draft {best['draft_length']}" if best["speculative"] else "")
        )
    for line in report["assumptions"]:
        out.print(f"assumed: {line}")
