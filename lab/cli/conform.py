"""`specgate conform`: tests how a gateway copes with misbehaving engines and clients."""

import asyncio
from typing import Annotated

import typer
from rich.text import Text

from lab.conform import SECURITY_CASES, CaseStatus, ConformanceReport, cases_for, run, select
from lab.conform.lab import Pace, laboratory
from lab.conform.report import CaseRun
from serve.cli.output import FOUND, Json, console, print_json
from serve.errors import ConfigError

_STYLE = {CaseStatus.PASS: "green", CaseStatus.FAIL: "red", CaseStatus.NOT_APPLICABLE: "dim"}


def conform(
    url: Annotated[str, typer.Argument(help="The gateway, with or without /v1.")],
    key: Annotated[str | None, typer.Option(envvar="CONFORM_KEY", help="The gateway's bearer token.")] = None,
    model: Annotated[str, typer.Option("--model", "-m", help="The model's name at the gateway.")] = "conform",
    upstream_port: Annotated[int, typer.Option(min=1, max=65535, help="Port of the scripted engine.")] = 9100,
    upstream_host: Annotated[str, typer.Option(help="Address of the scripted engine.")] = "127.0.0.1",
    only: Annotated[str, typer.Option(help="Comma-separated case names; by default all.")] = "",
    api: Annotated[str, typer.Option(help="Comma-separated APIs to test: chat, messages, responses.")] = "chat",
    security: Annotated[bool, typer.Option("--security", help="Run the security cases as well.")] = False,
    markdown: Annotated[bool, typer.Option("--markdown", help="Print a Markdown table instead of a report.")] = False,
    as_json: Json = False,
) -> None:
    """Start a scripted engine and run conformance cases against the gateway in front of it.

    First configure http://UPSTREAM_HOST:UPSTREAM_PORT/v1 as the gateway's only engine for MODEL. Exit code 1 if any
    case fails.
    """
    if as_json and markdown:
        raise ConfigError("--json and --markdown cannot be combined")
    table = (*cases_for(_names(api)), *(SECURITY_CASES if security else ()))
    cases = select(table, _names(only))
    base = url.rstrip("/").removesuffix("/v1")
    quiet = as_json or markdown
    if not quiet:
        typer.echo(f"waiting until {base} answers for the model {model!r}, at most {Pace.settle_s:g} s", err=True)

    async def measure() -> ConformanceReport:
        async with laboratory(base, key, model, upstream_host, upstream_port) as lab:
            return await run(lab, cases, (lambda _: None) if quiet else _print)

    report = asyncio.run(measure())
    if as_json:
        print_json(report.to_dict())
    elif markdown:
        typer.echo(report.to_markdown())
    else:
        console().print(", ".join(f"{count} {status}" for status, count in report.counts().items()))
    if not report.green:
        raise typer.Exit(FOUND)


def _names(text: str) -> list[str]:
    return [name.strip() for name in text.split(",") if name.strip()]


def _print(case_run: CaseRun) -> None:
    result = case_run.result
    line = Text.assemble(f"{case_run.case.name:27}", (f"{result.status:5}", _STYLE[result.status]), result.seen)
    console().print(line, soft_wrap=True)
