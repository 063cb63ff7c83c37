"""`specgate conform`: how any OpenAI-compatible gateway behaves when its neighbours do not."""

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import ConfigError
from serve.tools.conform import CASES, Report, Verdict, run, select
from serve.tools.conform.lab import laboratory
from serve.tools.conform.report import Row

_STYLE = {Verdict.PASS: "green", Verdict.FAIL: "red", Verdict.NOT_APPLICABLE: "dim"}


def conform(
    url: Annotated[str, typer.Argument(help="The gateway, with or without /v1.")],
    key: Annotated[
        str | None, typer.Option(envvar="CONFORM_KEY", help="Bearer token that the gateway wants; best in CONFORM_KEY.")
    ] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name at the gateway.")] = "conform",
    upstream_port: Annotated[
        int, typer.Option(min=1, max=65535, help="Port of the engine that is started here.")
    ] = 9100,
    upstream_host: Annotated[str, typer.Option(help="Address that it listens on.")] = "127.0.0.1",
    only: Annotated[str, typer.Option(help="Comma-separated names of cases; all without it.")] = "",
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table instead of a report.")] = False,
    as_json: Json = False,
) -> None:
    """Start a scripted engine, put the gateway before it to a table of cases; exit code 1 if any fails.

    Point the gateway at http://UPSTREAM_HOST:UPSTREAM_PORT/v1 as the one engine of MODEL first.
    """
    if as_json and markdown:
        raise ConfigError("--json and --markdown exclude each other")
    cases = select(CASES, [name.strip() for name in only.split(",") if name.strip()])
    base = url.rstrip("/").removesuffix("/v1")
    quiet = as_json or markdown

    async def measure() -> Report:
        async with laboratory(base, key, model, upstream_host, upstream_port) as lab:
            return await run(lab, cases, (lambda _: None) if quiet else _tell)

    report = asyncio.run(measure())
    if as_json:
        print_json(report.to_dict())
    elif markdown:
        typer.echo(report.to_markdown())
    else:
        console().print(", ".join(f"{count} {verdict}" for verdict, count in report.counts().items()))
    if not report.green:
        raise typer.Exit(FOUND)


def _tell(row: Row) -> None:
    verdict = row.result.verdict
    line = Text.assemble(f"{row.case.name:21}", (f"{verdict:5}", _STYLE[verdict]), row.result.seen)
    console().print(line, soft_wrap=True)
