"""`specgate plan`: which split of replicas serves recorded traffic with the fewest GPUs, or live traffic better."""

import logging
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.plan.live import advised, read_drafts
from lab.plan.recorded import read
from lab.plan.variants import Targets, assumptions, planned
from lab.simulation.traffic import lines_of
from serve.cli.admin import LOCAL, Url, ask
from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import ConfigError
from serve.tools.decider import Decider


def plan(
    traffic: Annotated[
        Path | None,
        typer.Option(
            "--traffic", help="JSON lines: a traffic file, requests as for replay, or agents' traces; gzip or plain."
        ),
    ] = None,
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The gateway's configuration file.")] = None,
    ttft_ms: Annotated[float, typer.Option(help="99th percentile of the time to the first token.")] = 2000.0,
    tpot_ms: Annotated[float, typer.Option(help="99th percentile of the time per further token.")] = 100.0,
    rate: Annotated[float, typer.Option(min=0.001, help="Requests per second, if the traffic has no times.")] = 10.0,
    speed: Annotated[float, typer.Option(min=0.001, help="Replay traces so many times faster.")] = 1.0,
    most_gpus: Annotated[int, typer.Option(min=1, help="Maximum number of GPUs.")] = 16,
    live: Annotated[bool, typer.Option("--live", help="Find better draft lengths for a running gateway.")] = False,
    url: Url = LOCAL,
    as_json: Json = False,
) -> None:
    """Play traffic against splits of a model's replicas: how many speculative, how many standard, which draft length.

    Exit code 1 if no split up to the limit serves it. With `--live`, nothing is played: what drafters accept in a
    running gateway says which draft length would serve each class of requests better; exit code 1 if another one would.
    """
    if live:
        _print_live(url, as_json)
        return
    if traffic is None or config is None:
        raise ConfigError("give --traffic and --config, or --live and the --url of a gateway's admin API")
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


def _print_live(url: str, as_json: bool) -> None:
    try:
        found = advised(read_drafts(ask("GET", url, "/admin/v1/drafts")["data"]))
    except (ValueError, KeyError, TypeError) as error:
        raise ConfigError(f"{url} reports drafts in another form; is it another version? {error}") from error
    if as_json:
        print_json(found)
    elif not found:
        console().print(
            "not enough evidence: no answer has reported its drafts; the gateway needs `policy: {load: observe}`, and "
            "engines that report, as `specgate doctor` says"
        )
    else:
        table = Table(
            "model", "pool", "class", "drafts", "batch", "tokens/step", "answers", "advice", "gain (95 %)", "by load",
            caption="Simulated from what was accepted; try it as a candidate (`shadow`) before you change an engine.",
            caption_justify="left",
        )  # fmt: skip
        for row in found:
            table.add_row(
                row["model"], row["pool"], row["request_class"] or "all", f"{row['drafts']}", f"{row['batch']:g}",
                f"{row['length']:.2f}" if "length" in row else "-", f"{row['answers']:,}",
                f"{row['advice']}: {row['why']}", _gain(row), _by_load(row),
            )  # fmt: skip
        console().print(table)
    if any(row["advice"].startswith(("draft", "do not")) for row in found):
        raise typer.Exit(FOUND)


def _gain(row: dict[str, Any]) -> str:
    return f"{row['gain']:+.0%} ({row['at_least']:+.0%} to {row['at_most']:+.0%})" if "gain" in row else "-"


def _by_load(row: dict[str, Any]) -> str:
    """Returns the best draft length by sequences in the batch, if it is not the same at each: what should adapt."""
    lengths = row.get("by_load") or {}
    begun = [(load, drafts) for place, (load, drafts) in enumerate(lengths.items())
             if not place or drafts != [*lengths.values()][place - 1]]  # fmt: skip
    return "the same" if len(begun) == 1 else ", ".join(f"{drafts} from {load}" for load, drafts in begun)


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
            f"{best['gpus']} GPU{'s' * (best['gpus'] > 1)} for {report['model']}: "
            f"{best['standard']} standard and {best['speculative']} speculative replicas"
            + (f" that draft {best['draft_length']}" if best["speculative"] else "")
        )
    for line in report["assumptions"]:
        out.print(f"assumed: {line}")
