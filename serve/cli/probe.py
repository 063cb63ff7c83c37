"""`specgate probe`: a clean-rate experiment against any OpenAI-compatible endpoint."""

import asyncio
import os
from pathlib import Path
from typing import Annotated, Any

import typer
import yaml
from rich.progress import BarColumn, MofNCompleteColumn, Progress, TextColumn, TimeRemainingColumn
from rich.table import Table

from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import ConfigError
from serve.tools.probe.grid import PROMPTS, SHAPES, Cell, grid
from serve.tools.probe.record import Record, evidence, summarise

_SWITCH = {"on": (True,), "off": (False,), "both": (False, True), "default": (None,)}


def probe(
    url: Annotated[str, typer.Option("--url", help="The endpoint, with or without /v1.")],
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name there.")],
    trials: Annotated[int, typer.Option("--trials", "-n", min=1, help="Trials a cell.")] = 20,
    prompts: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(PROMPTS)}.")] = "weather,two",
    prompts_file: Annotated[Path | None, typer.Option(help="Your own instead: YAML, a name and a text each.")] = None,
    shapes: Annotated[str, typer.Option(help=f"Comma-separated, of: {', '.join(SHAPES)}.")] = "auto,required",
    thinking: Annotated[str, typer.Option(help="on, off, both, or default: what the model does unasked.")] = "default",
    stream: Annotated[str, typer.Option(help="on, off or both.")] = "both",
    speculative: Annotated[
        str, typer.Option(help="on or off sends `enable_speculative`; default does not.")
    ] = "default",
    temperature: Annotated[float, typer.Option(min=0)] = 0.7,
    max_tokens: Annotated[int | None, typer.Option(min=1)] = None,
    concurrency: Annotated[int, typer.Option(min=1, help="Requests in flight.")] = 8,
    timeout_s: Annotated[float, typer.Option(min=0.1)] = 120,
    api_key_env: Annotated[str | None, typer.Option(help="Environment variable that holds the API key.")] = None,
    tolerate: Annotated[float, typer.Option(min=0, max=1, help="Share of broken answers that is accepted.")] = 0.0,
    out: Annotated[
        Path | None, typer.Option("--out", help="Record of the trials; a stopped run goes on from it.")
    ] = None,
    cite: Annotated[Path | None, typer.Option("--evidence", help="Write evidence for an advisory, as YAML.")] = None,
    as_json: Json = False,
) -> None:
    """Measure how many answers are clean; exit code 1 if more are broken than tolerated, 2 if none could be had."""
    texts = {name: PROMPTS[name] for name in _chosen(prompts, PROMPTS)} if prompts_file is None else _own(prompts_file)
    cells = list(grid(texts, _chosen(shapes, SHAPES), _switch(thinking), [bool(s) for s in _switch(stream)]))
    wish = _switch(speculative)[0]
    settings = {"url": url, "model": model, "temperature": temperature, "max_tokens": max_tokens, "speculative": wish}
    record = Record(out, settings)

    def make(cell: Cell) -> dict[str, Any]:
        return cell.request(model, max_tokens, temperature, wish)

    work = [(cell, number) for cell in cells for number in range(trials) if (cell.name, number) not in record.done]
    if work:
        asyncio.run(_run(url, _key(api_key_env), timeout_s, work, make, record, concurrency, quiet=as_json))
    asked = {cell.name for cell in cells}
    summary = summarise([each for each in record.trials if each["cell"] in asked], tolerate)
    if cite is not None:
        what = f"Clean answers of {model}: {shapes}; thinking {thinking}, stream {stream}, speculative {speculative}"
        entry = evidence(summary, f"specgate probe, {trials} trials a cell, {len(cells)} cells", what)
        cite.write_text(yaml.safe_dump([entry], sort_keys=False, allow_unicode=True), encoding="utf-8")
    if as_json:
        print_json(summary)
    else:
        _print(summary)
    if not summary["total"]["n"]:
        raise ConfigError(f"no answer from {url} could be judged: {_first_error(record)}")
    if any(row["unclean"] for row in summary["cells"].values()):
        raise typer.Exit(FOUND)


async def _run(
    url: str, key: str, timeout_s: float, work: Any, make: Any, record: Record, concurrency: int, *, quiet: bool
) -> None:
    try:
        from openai import AsyncOpenAI

        from serve.tools.probe.runner import run
    except ImportError as error:
        raise ConfigError("specgate probe needs the openai package: pip install openai") from error
    base = url.rstrip("/")
    columns = (TextColumn("{task.description}"), BarColumn(), MofNCompleteColumn(), TimeRemainingColumn())
    async with AsyncOpenAI(
        base_url=base if base.endswith("/v1") else f"{base}/v1", api_key=key, timeout=timeout_s, max_retries=0
    ) as client:
        with Progress(*columns, console=console(), disable=quiet, transient=True) as progress:
            task = progress.add_task("probing", total=len(work))
            await run(client, work, make, record, concurrency, lambda: progress.advance(task))


def _key(variable: str | None) -> str:
    if variable is None:
        return "none"
    if variable not in os.environ:
        raise ConfigError(f"the environment variable {variable} is not set")
    return os.environ[variable]


def _chosen(names: str, known: dict[str, Any]) -> list[str]:
    chosen = [name.strip() for name in names.split(",")]
    if unknown := [name for name in chosen if name not in known]:
        raise ConfigError(f"unknown: {', '.join(unknown)}; known: {', '.join(known)}")
    return chosen


def _own(path: Path) -> dict[str, str]:
    try:
        texts = yaml.safe_load(path.read_text(encoding="utf-8"))
    except yaml.YAMLError as error:
        raise ConfigError(f"{path} is not YAML: {error}") from error
    if not isinstance(texts, dict) or not texts or not all(isinstance(text, str) for text in texts.values()):
        raise ConfigError(f"{path} holds no mapping of names to texts")
    return {str(name): text for name, text in texts.items()}


def _switch(value: str) -> tuple[bool | None, ...]:
    if value not in _SWITCH:
        raise ConfigError(f"{value!r} is none of {', '.join(_SWITCH)}")
    return _SWITCH[value]


def _first_error(record: Record) -> str:
    return next(
        (each["detail"] for each in record.trials if each["outcome"] == "error"), "all were cut by their length"
    )


def _print(summary: dict[str, Any]) -> None:
    table = Table("cell", "clean", "95 % interval", "calls", "outcomes", "pools")
    for name, row in {**summary["cells"], "all": summary["total"]}.items():
        low, high = row["interval"]
        style = "red" if row["unclean"] else "green"
        outcomes = ", ".join(f"{count} {outcome}" for outcome, count in row["outcomes"].items())
        clean = f"[{style}]{row['clean']}/{row['n']}[/]"
        table.add_row(name, clean, f"{low:.1%} to {high:.1%}", str(row["calls"]), outcomes, ", ".join(row["pools"]))
    console().print(table)
