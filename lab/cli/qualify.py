"""`specgate qualify`: shows, before an engine serves, that its drafts change nothing, and signs what was found."""

import asyncio
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer
from rich.progress import Progress, TextColumn

from lab.cli.findings import Finding, findings_table
from serve.cli.output import FOUND, Json, console, print_json
from serve.config.gateway import GatewayConfig
from serve.config.signed_verdicts import EngineVerdict, write_qualification
from serve.errors import ConfigError

if TYPE_CHECKING:
    from lab.probe.qualify import QualifyTerms
    from lab.probe.qualify_run import Qualified

_DAYS = 90


def qualify(
    config: Annotated[Path, typer.Option("--config", "-c", help="The gateway's configuration file.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name there.")],
    pool: Annotated[str, typer.Option("--pool", "-p", help="The pool that will have the engine.")],
    *,
    url: Annotated[
        str | None, typer.Option(help="The engine, without /v1; by default the remote pool's first.")
    ] = None,
    standard: Annotated[
        str | None,
        typer.Option(
            help="An engine of the model that does not draft. By default a remote pool's, or the engine itself with "
            "the opt-out."
        ),
    ] = None,
    api_key_env: Annotated[
        str | None,
        typer.Option(help="Environment variable with the engines' API key; by default the pool's."),
    ] = None,
    key: Annotated[
        Path | None, typer.Option(help="Your private key (Ed25519, PEM); without it, verdicts are only printed.")
    ] = None,
    out: Annotated[
        Path | None,
        typer.Option(help="Folder of signed verdicts; by default `policy.qualifications`."),
    ] = None,
    days: Annotated[int, typer.Option(min=1, help="How long the verdicts hold.")] = _DAYS,
    tolerance: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="How much more often answers may be bad with drafts.")
    ] = 0.05,
    corruption: Annotated[
        float, typer.Option(min=0.001, max=0.5, help="Share of changed identifiers at which an engine fails.")
    ] = 0.003,
    most: Annotated[int, typer.Option(min=8, help="Maximum requests of one test.")] = 480,
    seed: Annotated[int, typer.Option(help="Selects the prompts.")] = 0,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest time for one request.")] = 120,
    as_json: Json = False,
) -> None:
    """Compare an engine that drafts with one that does not, until what drafts change is certain.

    Each test (tools, JSON, stop strings, log-probabilities, long texts, two at once, copied identifiers) is passed,
    failed or undecided. Exit code 1 if the engine fails one.
    """
    from lab.probe.qualify import QualifyTerms  # the OpenAI SDK takes about a second
    from lab.probe.qualify_run import pair_of, run_qualify

    settings = GatewayConfig.load(config)
    folder = out or (Path(settings.policy.qualifications) if settings.policy.qualifications else None)
    if key and not (folder and folder.is_dir()):
        raise ConfigError("there is no folder for the verdicts: give --out FOLDER, or set policy.qualifications")
    pair = pair_of(settings, model, pool, url, standard, api_key_env)
    terms = QualifyTerms(tolerance=tolerance, corruption=corruption, most=most, seed=seed)
    with Progress(
        TextColumn("{task.description} {task.completed}"), console=console(), disable=as_json, transient=True
    ) as progress:
        tasks: dict[str, Any] = {}

        def advance(test: str) -> None:
            if test not in tasks:
                tasks[test] = progress.add_task(test, total=None)
            progress.advance(tasks[test])

        found = asyncio.run(run_qualify(settings, pair, terms, timeout_s, advance))
    path = write_qualification(folder, found.key, found.tests, terms.to_dict(), key, days) if key and folder else None
    _report(found, terms, path, days, as_json=as_json)
    if any(verdict.finding == "failed" for verdict in found.tests.values()):
        raise typer.Exit(FOUND)


def _report(found: "Qualified", terms: "QualifyTerms", path: Path | None, days: int, *, as_json: bool) -> None:
    if as_json:
        tests = {name: verdict.model_dump() for name, verdict in found.tests.items()}
        print_json({"key": found.key, "terms": terms.to_dict(), "tests": tests, "written": str(path) if path else None})
        return
    rows = (_row(name, verdict) for name, verdict in found.tests.items())
    console().print(findings_table("test", "worse by", ("why",), rows))
    engine = f"{found.key['engine']} {found.key['engine_version']}, {found.key['method']}"
    console().print(f"{engine}: " + (f"signed for {days} days: {path}" if path else "not signed: give --key"))


def _row(name: str, verdict: EngineVerdict) -> Finding:
    bounds = f"{verdict.at_least:.2%} to {verdict.at_most:.2%}"
    return Finding(name, verdict.finding, verdict.n - verdict.bad, verdict.n, bounds, (verdict.why[:200],))
