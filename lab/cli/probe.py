"""`specgate probe`: a clean-rate experiment against any OpenAI-compatible endpoint."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import replace
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from lab.cli.echo import echo_command
from lab.cli.findings import Finding, findings_table
from lab.probe.grid import PROMPTS, SHAPES, grid
from lab.probe.k2vv import RequestSet, metrics, read_reference, read_requests
from lab.probe.plan import Cell, ProbePlan
from lab.probe.trial_log import TrialLog, evidence, summarise
from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import ConfigError

_NAMES = {"clean": "right", "schema_mismatch": "schema missed", "integrity_violation": "refused by the guard"}
_SWITCH = {"on": (True,), "off": (False,), "both": (False, True), "default": (None,)}


def probe(
    requests: Annotated[
        Path | None, typer.Argument(metavar="[FILE]", help="Recorded requests to send, in the given --format.")
    ] = None,
    *,
    url: Annotated[str, typer.Option("--url", help="The endpoint, with or without /v1.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name there.")],
    file_format: Annotated[
        str | None,
        typer.Option("--format", help="k2vv: FILE is a request set of K2-Vendor-Verifier."),
    ] = None,
    reference: Annotated[
        Path | None,
        typer.Option(help="The verifier's results, or a probe's --out, to compare with."),
    ] = None,
    trials: Annotated[
        int | None, typer.Option("--trials", "-n", min=1, help="Trials per request: 20, or 1 if recorded.")
    ] = None,
    prompts: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(PROMPTS)}.")] = "weather,two",
    prompts_file: Annotated[
        Path | None, typer.Option(help="Your own prompts: a YAML mapping of names to texts.")
    ] = None,
    shapes: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(SHAPES)}.")] = "auto,required",
    thinking: Annotated[str, typer.Option(help="on, off, both, or default (the model's).")] = "default",
    stream: Annotated[str, typer.Option(help="on, off or both.")] = "both",
    speculative: Annotated[
        str, typer.Option(help="on or off sends `enable_speculative`; default does not.")
    ] = "default",
    temperature: Annotated[float | None, typer.Option(min=0, help="0.7, or a recorded request's own.")] = None,
    max_tokens: Annotated[int | None, typer.Option(min=1, help="Longest answer.")] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    timeout_s: Annotated[float, typer.Option(min=0.1, help="Longest time for one request.")] = 120,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
    tolerate: Annotated[float, typer.Option(min=0, max=1, help="Share of answers that may be broken.")] = 0.0,
    judge: Annotated[
        str | None,
        typer.Option(help="An engine of the model without a drafter, to find out what broke each answer."),
    ] = None,
    echo: Annotated[
        bool,
        typer.Option("--echo", help="Test instead whether identifiers are copied exactly."),
    ] = False,
    identifiers: Annotated[int, typer.Option(min=8, help="With --echo: maximum number.")] = 3200,
    seed: Annotated[int, typer.Option(help="With --echo: selects the identifiers.")] = 0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Log of the trials, from which an interrupted run resumes.")
    ] = None,
    cite: Annotated[Path | None, typer.Option("--evidence", help="Write evidence for an advisory, as YAML.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how many answers are right.

    An answer is right if it is complete, well-formed and valid for its schema. What a gateway's guard refuses counts as
    broken; answers cut at their length limit and failed requests do not count. Exit code 1 if more are broken than
    tolerated, 2 if no answer could be checked.
    """
    plan = ProbePlan(
        url=url,
        model=model,
        cells=(),
        trials=0,
        temperature=0.0 if temperature is None and echo else temperature,
        max_tokens=max_tokens,
        speculative=_switch(speculative)[0],
        concurrency=concurrency,
        timeout_s=timeout_s,
        api_key_env=api_key_env,
        tolerate=tolerate,
        judge=judge,
    )
    if echo:
        if requests or out or cite or judge:
            raise ConfigError("--echo makes its own requests: it takes no FILE, --out, --evidence or --judge")
        echo_command(plan, identifiers, seed, stream=stream != "off", as_json=as_json)
        return
    recorded = _recorded(requests, file_format)
    streams = [bool(value) for value in _switch(stream)]
    cells: tuple[Cell, ...]
    if requests and recorded:
        cells = tuple(RequestSet(requests.name, recorded, each) for each in streams)
    else:
        texts = _own(prompts_file) if prompts_file else {name: PROMPTS[name] for name in _chosen(prompts, PROMPTS)}
        cells = tuple(grid(texts, _chosen(shapes, SHAPES), _switch(thinking), streams))
    trials = trials or (1 if recorded else 20)
    if temperature is None and not recorded:
        temperature = 0.7
    plan = replace(plan, cells=cells, trials=trials, temperature=temperature)
    log = TrialLog(out, plan.settings)
    _run(plan, log, quiet=as_json)
    names = {cell.name for cell in plan.cells}
    own = [trial for trial in log.trials if trial["cell"] in names]
    summary = summarise(own, tolerate)
    if recorded:
        against = read_reference(reference) if reference else None
        summary["k2vv"] = [{"cell": cell, "pool": pool, **row} for (cell, pool), row in metrics(own, against).items()]
    if cite is not None and summary["total"]["n"]:
        what = f"{requests.name}" if requests else f"{shapes}; thinking {thinking}"
        finding = f"Clean answers of {model}: {what}, stream {stream}, speculative {speculative}"
        entry = evidence(summary, f"specgate probe, {trials} trials a cell, {len(plan.cells)} cells", finding)
        cite.write_text(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True), encoding="utf-8")
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    if not summary["total"]["n"]:
        raise ConfigError(f"no answer from {url} could be checked: {_first_error(log)}")
    if any(row["unclean"] for row in summary["cells"].values()):
        raise typer.Exit(FOUND)


def _run(plan: ProbePlan, log: TrialLog, *, quiet: bool) -> None:
    """Run the trials that the log does not have yet, with a progress bar."""
    pending = plan.pending(log.done)
    if not pending:
        return
    from lab.probe.runner import run  # imports the OpenAI SDK, which takes about a second

    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    with Progress(*columns, console=console(), disable=quiet, transient=True) as progress:
        task = progress.add_task("probing", total=len(pending))
        asyncio.run(run(plan, log, lambda: progress.advance(task)))


def _recorded(path: Path | None, file_format: str | None) -> dict[int, dict[str, Any]] | None:
    """Returns the recorded requests by line; None if there is no file."""
    if (path is None) != (file_format is None):
        raise ConfigError("a FILE of recorded requests and its --format are given together")
    if file_format not in (None, "k2vv"):
        raise ConfigError(f"unknown --format {file_format!r}; known: k2vv")
    return read_requests(path) if path else None


def _chosen(names: str, known: Mapping[str, Any]) -> list[str]:
    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return chosen


def _own(path: Path) -> dict[str, str]:
    """Returns the prompts of a user's file, by name."""
    try:
        texts = yaml.safe_load(path.read_bytes())
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(texts, dict) or not texts or not all(isinstance(text, str) for text in texts.values()):
        raise ConfigError(f"{path} must be a mapping of names to texts")
    return {str(name): text for name, text in texts.items()}


def _switch(value: str) -> tuple[bool | None, ...]:
    if value not in _SWITCH:
        raise ConfigError(f"{value!r} is not one of {', '.join(_SWITCH)}")
    return _SWITCH[value]


def _first_error(log: TrialLog) -> str:
    details = (trial["detail"] for trial in log.trials if trial["outcome"] == "error")
    return next(details, "all of them hit their length limit")


def _print(summary: dict[str, Any]) -> None:
    heads = ("calls", "outcomes", "broken by", "pools")
    rows = ({**summary["cells"], "all": summary["total"]}).items()
    console().print(findings_table("cell", "95 % interval", heads, (_finding(name, row) for name, row in rows)))
    if "k2vv" in summary:
        console().print(_verifier_table(summary["k2vv"]))


def _finding(name: str, row: Mapping[str, Any]) -> Finding:
    low, high = row["interval"]
    outcomes, causes = (
        ", ".join(f"{count} {_NAMES.get(name, name)}" for name, count in row[kind].items())
        for kind in ("outcomes", "causes")
    )
    details = (str(row["calls"]), outcomes, causes, ", ".join(row["pools"]))
    finding = "unclean" if row["unclean"] else "clean" if row["n"] else "not checked"
    return Finding(name, finding, row["clean"], row["n"], f"{low:.1%} to {high:.1%}", details)


def _verifier_table(rows: Iterable[Mapping[str, Any]]) -> Table:
    table = Table(
        "cell", "pool", "ended in tool calls", "of them valid", "schema accuracy", "F1", title="K2-Vendor-Verifier"
    )
    for row in rows:
        shares = (row["schema_accuracy"], row.get("tool_call_f1"))
        counts = (row["count_finish_reason_tool_calls"], row["count_successful_tool_call"])
        texts = ("-" if share is None else f"{share:.2%}" for share in shares)
        table.add_row(row["cell"], row["pool"], *map(str, counts), *texts)
    return table
