"""`specgate explain`: shows the decision on one request, every reason for it, and what would change it."""

import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Annotated, Any

import typer
from rich.table import Table

from policies import Cell, Decision, QuarantineReason, RequestFeatures, TrialTerms, decide, quarantine
from policies import explain as explained
from policies.classes import GUARDED, class_of_names
from policies.quarantine import possible_trials
from serve.cli.output import Json, console, print_json
from serve.errors import ConfigError, GatewayError
from serve.request.continuation import obstacle
from serve.tools.decider import Decider


def explain(
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    request: Annotated[str, typer.Option("--request", "-r", help="File with a request's JSON body; - for stdin.")],
    header: Annotated[list[str] | None, typer.Option("--header", "-H", help="A request header, 'name: value'.")] = None,
    api: Annotated[
        str, typer.Option(help="The request's API: chat, which includes text, responses or messages.")
    ] = "chat",
    as_json: Json = False,
) -> None:
    """Decide one request, without an engine, and explain the decision; `live` says what a running gateway adds."""
    decider = Decider.load(config)
    body = sys.stdin.buffer.read() if request == "-" else Path(request).read_bytes()
    try:
        read = decider.read(body, dict(map(_header, header or ())), api)
    except GatewayError as error:
        raise ConfigError(f"--request {request}: {error}") from error
    features, terms = read.features, decider.trial_terms(read)
    decision = decide(decider.policy, features, features.preference)
    report = explained(decider.policy, features, decision, terms)
    report["live"] = list(_live(decider, features, decision, terms))
    if (why := obstacle(features)) is not None:
        report["rerun_only"] = why
    if as_json:
        print_json(report)
    else:
        _print(report)


def _header(text: str) -> tuple[str, str]:
    name, colon, value = text.partition(":")
    if not colon:
        raise ConfigError(f"--header takes 'name: value', not {text!r}")
    return name.strip().lower(), value.strip()


def _live(decider: Decider, features: RequestFeatures, decision: Decision, terms: TrialTerms | None) -> Iterator[str]:
    """Yields what a running gateway may do with such requests, by what only it knows: its load and its quarantine."""
    config = decider.config
    if config.policy.load == "route" and decision.tiers:
        yield "load: the candidates may be in another order (policy.load: route)"
    if not config.quarantine.enabled or decision.refused or GUARDED.isdisjoint(decision.classes):
        return
    cell = Cell(decision.model, decision.candidates[0].pool, decision.speculative, class_of_names(decision.classes)[0])
    policy = quarantine(decider.policy, {cell: QuarantineReason(why="", basis="measured")})
    after = decide(policy, features, features.preference)
    if after.candidates != decision.candidates:
        probes = possible_trials(after, terms).probes if terms else ()
        share = f", but for {probes[0].chance:.3g} that are probes" if probes else ""
        how = "with" if cell.speculative else "without"
        yield f"quarantine: while {cell.pool} {how} speculation is out, {after.pool} answers such requests{share}"


def _print(report: dict[str, Any]) -> None:
    out = console()
    out.print(_decision(report), style="bold")
    out.print(f"model    {report['model']}\nclasses  {', '.join(report['classes'])}\npolicy   {report['policy']}")
    for pool, qualified in report["qualified"].items():
        out.print(f"engine   {pool}: {qualified}")
    for line in report["live"]:
        out.print(f"live     {line}")
    if "rerun_only" in report:
        out.print(f"broken   an answer that breaks is run again, never resumed: {report['rerun_only']}")
    if report["reasons"]:
        table = Table("advisory", "effect", "why", "evidence", title="reasons", title_justify="left")
        for reason in report["reasons"]:
            evidence = report["evidence"][reason["advisory"]]
            table.add_row(reason["advisory"], reason["effect"], reason["summary"], evidence)
        out.print(table)
    else:
        out.print("reasons  none: no advisory applies")
    if report["would_change"]:
        table = Table("change", "advisory", "then", title="what would change it (tried)", title_justify="left")
        for change in report["would_change"]:
            mode = "speculative, under the guard" if change["optimistic"] else _mode(change["speculative"])
            table.add_row(change["change"], change["advisory"] or "", f"{change['pool']}, {mode}")
        out.print(table)


def _mode(speculative: bool) -> str:
    return "speculative" if speculative else "not speculative"


def _decision(report: dict[str, Any]) -> str:
    if report["refused"]:
        return "refused: no pool is allowed"
    opt_out = " (switched off inside the engine)" if report["opt_out"] else ""
    guard = ", under the guard" if report["optimistic"] else ""
    return f"{report['pool']}: {_mode(report['speculative'])}{opt_out}{guard}"
