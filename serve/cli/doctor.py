"""`specgate doctor`: shows which pools a configuration allows for which requests, and what to fix.

Behind `--` it takes the command line of an engine instead: what the line tells, and what is known against it.
"""

from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table
from rich.text import Text

from serve.cli.output import FOUND, Json, console, print_finding, print_json
from serve.config import yaml_files
from serve.config.access import listening_host
from serve.errors import ConfigError
from serve.tools.decider import Decider
from serve.tools.doctor import examine, examine_line, first_of, stated_facts, try_store

_SHOWN_CAUSES = 3  # of a cell; `--json` has all
_OURS = ("model", "pool", "kind", "settings", "opt_out", "proven", "canary_share", "qualification")  # not an engine's


def doctor(
    config: Annotated[Path | None, typer.Option("--config", "-c", help="The gateway's configuration file.")] = None,
    fact: Annotated[
        list[str] | None, typer.Option("--fact", help="NAME=VALUE: a fact that the command line does not show.")
    ] = None,
    command: Annotated[
        list[str] | None,
        typer.Argument(metavar="[-- COMMAND]", help="An engine's command line, such as `-- vllm serve MODEL ...`."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Check a configuration, or an engine's command line, for hazards that nothing mitigates."""
    if (config is None) is (not command):
        raise ConfigError("give either --config FILE or, behind `--`, the command line of an engine")
    if fact and config is not None:
        raise ConfigError("--fact goes with a command line; in a configuration, facts stand in the pool's `facts`")
    if command:
        report = examine_line(command, stated_facts(fact or ()))
    else:
        assert config is not None
        decider = Decider.load(config)
        report = examine(decider, listening_host(yaml_files.read(config)), try_store(decider.config))
    if as_json:
        print_json(report)
    elif command:
        _print_engine(report)
    else:
        _print(report)
    if not report["healthy"]:
        raise typer.Exit(FOUND)


def _print_engine(report: dict[str, Any]) -> None:
    out = console()
    facts = report["facts"]
    table = Table("fact", "value", title=f"{report['engine']} {report['model'] or ''}", title_justify="left")
    for name, value in facts.items():
        if name not in _OURS:
            table.add_row(name, _told(name, value))
    for name, value in facts["settings"].items():
        table.add_row(f"settings.{name}", str(value))
    out.print(table)
    if report["left_open"]:
        out.print(f"left to variables: {', '.join(report['left_open'])}")
    requests = Table("requests", "drafts are", title="what the advisories allow", title_justify="left")
    for row in report["requests"]:
        verdict = (
            Text("allowed", "green") if row["allowed"] else _forbidden("forbidden", ", ".join(row["forbidden_by"]))
        )
        requests.add_row(" ".join(row["classes"]), verdict)
    if facts["method"] is not None:
        out.print(requests)
    _print_findings(out, report["findings"])
    healthy = Text("nothing is known against it", "green")
    out.print(healthy if report["healthy"] else Text("hazards, see above", "red"))


def _told(name: str, value: Any) -> str:
    if name == "method" and value is None:
        return "none: it does not speculate"
    return "unknown" if value is None else str(value)


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
    _print_findings(out, report["findings"])
    if not report["healthy"]:
        out.print("some hazards are not covered", style="red")
    elif any(finding["advisory"] and finding["level"] == "warning" for finding in report["findings"]):
        out.print("no uncovered hazards but those of the warnings", style="yellow")
    else:
        out.print("no uncovered hazards", style="green")


def _print_findings(out: Any, findings: list[dict[str, Any]]) -> None:
    for finding in findings:
        print_finding(finding["level"], "/".join(filter(None, (finding["model"], finding["pool"]))), finding["message"])
        for cure in finding["cures"]:
            out.print(f"         cure: {cure}")


def _cell(pool: dict[str, Any]) -> Text:
    if not pool["allowed"]:
        return _forbidden("no", first_of(pool["forbidden_by"], _SHOWN_CAUSES))
    return Text("guarded" if pool["effect"] == "optimistic" else "yes", "yellow" if pool["effect"] else "green")


def _forbidden(verdict: str, by: str) -> Text:
    return Text.assemble((verdict, "red"), f" {by}")


def _decision(row: dict[str, Any]) -> str | Text:
    if row["refused"]:
        return Text("refused", "red")
    mode = "speculative" if row["speculative"] else "opt-out" if row["opt_out"] else "standard"
    return f"{row['pool']} ({mode})"
