"""`specgate up`: check a cluster file, and bring the cluster up."""

import os
import subprocess
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.config import layers
from serve.errors import ConfigError
from serve.launch.check import CheckReport, check_file
from serve.launch.findings import Finding
from serve.launch.memory import GIB
from serve.tools.doctor.checkup import examine
from serve.tools.doctor.decider import Decider

_STYLE = {"error": "red", "todo": "magenta", "warning": "yellow"}
_RENDERED = Path("run")


def up(
    cluster: Annotated[Path, typer.Argument(help="A cluster file for Ray's launcher; it may extend another.")],
    check: Annotated[bool, typer.Option("--check", help="Only check; start nothing.")] = False,
    as_json: Json = False,
) -> None:
    """Check a cluster file and what it would serve, then `ray up`.

    Exit code 1 if something in it can't work. Nothing is started unless everything is in order.
    """
    report = check_file(cluster)
    findings = [*report.findings, *_hazards(report)]
    if as_json:
        print_json({**report.to_dict(), "findings": [_plain(each) for each in findings], "ok": not _errors(findings)})
    else:
        _print(report, findings)
    if _errors(findings):
        raise typer.Exit(FOUND)
    if check:
        return
    if any(each.level == "todo" for each in findings):
        raise ConfigError(f"{cluster} still has placeholders, see above; put yours and start again")
    raise typer.Exit(subprocess.run(["ray", "up", "--yes", str(_complete(cluster))], check=False).returncode)


def _hazards(report: CheckReport) -> list[Finding]:
    """What `specgate doctor` says of the config."""
    if report.config is None:
        return []
    level = {"error": "error", "warning": "warning"}
    return [
        Finding(level[each["level"]], "/".join(filter(None, (each["model"], each["pool"]))), each["message"])  # type: ignore[arg-type]
        for each in examine(Decider(report.config))["findings"]
        if each["level"] in level
    ]


def _complete(cluster: Path) -> Path:
    """The file as Ray's launcher needs it: one that extends another is written out, which `ray down` then takes too."""
    if "extends" not in yaml.safe_load(cluster.read_text(encoding="utf-8")):
        return cluster
    _RENDERED.mkdir(exist_ok=True)
    target = _RENDERED / f"{cluster.stem}.yaml"
    target.write_text(layers.dump(layers.read(cluster)), encoding="utf-8")
    console().print(f"wrote {target}{os.linesep}`ray down {target}` stops the cluster", markup=False)
    return target


def _errors(findings: list[Finding]) -> bool:
    return any(each.level == "error" for each in findings)


def _plain(finding: Finding) -> dict[str, str]:
    return {"level": finding.level, "about": finding.about, "message": finding.message}


def _print(report: CheckReport, findings: list[Finding]) -> None:
    out = console()
    nodes = Table("node", "offers", "gets", title="Nodes", title_justify="left")
    for node in report.nodes:
        offers = ", ".join(f"{amount:g} {name}" for name, amount in node.resources.items())
        nodes.add_row(node.name, offers, ", ".join(report.placement.get(node.name, ())))
    out.print(nodes)
    if report.fits:
        out.print(_memory(report))
    for each in findings:
        out.print(f"[{_STYLE[each.level]}]{each.level:8}[/]{each.about}: ", end="")
        out.print(each.message, markup=False)
    out.print("[red]can't work[/]" if _errors(findings) else "[green]nothing speaks against it[/]")


def _memory(report: CheckReport) -> Table:
    columns = (
        "pool",
        "GPUs",
        "budget",
        "weights",
        "drafter",
        "reserve",
        "states",
        "KV tokens",
        "max-model-len",
        "a sequence",
    )
    table = Table(*columns, title="Memory of one GPU in GiB, estimated (docs/operations.md)", title_justify="left")
    for fit in report.fits:
        name, found = f"{fit.model}/{fit.pool}", fit.estimate
        if found is None:
            table.add_row(name, f"{fit.gpus:g}", *["?"] * 8)
            continue
        parts = (found.budget, found.weights, found.drafter, found.reserve, found.states)
        style = "green" if found.fits else "red"
        table.add_row(
            name,
            f"{fit.gpus:g}x {fit.gpu}",
            *(f"{part / GIB:.1f}" for part in parts),
            f"[{style}]{found.kv_tokens:,}[/]",
            f"{found.max_model_len:,}" if found.max_model_len else "",
            f"{found.kv_tokens // found.sequences:,}",
        )
    return table
