"""`specgate up`: checks a cluster file and starts the cluster."""

import os
import subprocess
from dataclasses import replace
from pathlib import Path
from typing import Annotated

import typer
import yaml
from rich.table import Table
from rich.text import Text

from serve.cli.output import FOUND, Json, console, print_finding, print_json
from serve.config import yaml_files
from serve.errors import ConfigError
from serve.launch.check import CheckReport, check_file
from serve.launch.cluster_file import ClusterFinding
from serve.launch.memory import GIB
from serve.tools.decider import Decider
from serve.tools.doctor import examine

_RENDERED = Path("run")


def up(
    cluster: Annotated[Path, typer.Argument(help="A cluster file of Ray's cluster launcher; it may extend another.")],
    check: Annotated[bool, typer.Option("--check", help="Only check; do not start anything.")] = False,
    as_json: Json = False,
) -> None:
    """Check a cluster file and the config it would serve, then run `ray up`.

    Nothing is started unless all checks pass.
    """
    report = check_file(cluster)
    report = replace(report, findings=(*report.findings, *_hazards(report)))
    if as_json:
        print_json(report.to_dict())
    else:
        _print(report)
    if not report.ok:
        raise typer.Exit(FOUND)
    if check:
        return
    if any(finding.level == "todo" for finding in report.findings):
        raise ConfigError(f"{cluster} still has the placeholders listed above; replace them and try again")
    raise typer.Exit(subprocess.run(["ray", "up", "--yes", str(_complete(cluster))], check=False).returncode)


def _hazards(report: CheckReport) -> list[ClusterFinding]:
    """Returns the errors and warnings of `specgate doctor`."""
    if report.config is None:
        return []
    return [
        ClusterFinding(
            finding["level"], "/".join(filter(None, (finding["model"], finding["pool"]))), finding["message"]
        )
        for finding in examine(Decider(report.config))["findings"]
        if finding["level"] in ("error", "warning")
    ]


def _complete(cluster: Path) -> Path:
    """Returns a file that Ray's launcher can read; one that extends another is written out, also for `ray down`."""
    if "extends" not in yaml.safe_load(cluster.read_text(encoding="utf-8")):
        return cluster
    _RENDERED.mkdir(exist_ok=True)
    target = _RENDERED / f"{cluster.stem}.yaml"
    target.write_text(yaml_files.dump(yaml_files.read(cluster)), encoding="utf-8")
    console().print(f"wrote {target}{os.linesep}stop the cluster with `ray down {target}`")
    return target


def _print(report: CheckReport) -> None:
    out = console()
    nodes = Table("node", "offers", "gets", title="Nodes", title_justify="left")
    for node in report.nodes:
        offers = ", ".join(f"{amount:g} {name}" for name, amount in node.resources.items())
        nodes.add_row(node.name, offers, ", ".join(report.placement.get(node.name, ())))
    out.print(nodes)
    if report.fits:
        out.print(_memory(report))
    for finding in report.findings:
        print_finding(finding.level, finding.about, finding.message)
    todo = sum(finding.level == "todo" for finding in report.findings)
    if not report.ok:
        out.print("cannot work as configured", style="red")
    elif todo:
        out.print(f"no problems found, but {todo} placeholders to replace before it can start", style="yellow")
    else:
        out.print("no problems found", style="green")


def _memory(report: CheckReport) -> Table:
    columns = (
        "pool", "GPUs", "budget", "weights", "drafter", "reserve", "states", "KV tokens", "max-model-len",
        "per sequence",
    )  # fmt: skip
    title = "Memory of one GPU in GiB, estimated (docs/how-to/plan-capacity.md)"
    table = Table(*columns, title=title, title_justify="left")
    for fit in report.fits:
        name = f"{fit.model}/{fit.pool}"
        estimate = fit.estimate
        if estimate is None:
            table.add_row(name, f"{fit.gpus:g}", *["?"] * 8)
            continue
        parts = (estimate.budget, estimate.weights, estimate.drafter, estimate.reserve, estimate.states)
        table.add_row(
            name,
            f"{fit.gpus:g}x {fit.gpu}",
            *(f"{part / GIB:.1f}" for part in parts),
            Text(f"{estimate.kv_tokens:,}", "green" if estimate.fits else "red"),
            f"{estimate.max_model_len:,}" if estimate.max_model_len else "",
            f"{estimate.kv_tokens // estimate.sequences:,}",
        )
    return table
