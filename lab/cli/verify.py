"""`specgate advisories verify`: how each advisory is known, and what can be tried of it."""

from collections import Counter
from collections.abc import Mapping
from typing import Annotated, Any

import typer
from rich.table import Table

from lab.claims.verification import KINDS, row_of, try_claims
from policies import load_advisories
from serve.cli.advisories import Folder, engines
from serve.cli.output import FOUND, Json, console, print_json
from serve.config.compiled_policy import SHIPPED_ADVISORIES
from serve.errors import ConfigError


def verify(
    folder: Folder = SHIPPED_ADVISORIES,
    engine: Annotated[
        str | None,
        typer.Option("--engine", help="Test this version, such as vllm==0.33.0, whose Python code is downloaded."),
    ] = None,
    as_json: Json = False,
) -> None:
    """Show how each advisory is known, and test on a vLLM what needs no weights.

    Exit code 1 if the engine contradicts a confirmed advisory.
    """
    asked = engines(engine).get("vllm")
    if engine and not asked:
        raise ConfigError(f"--engine: only vllm can be tried, not {engine!r}")
    tried = try_claims(asked if engine else None) if asked else None
    rows = [row_of(advisory, tried) for advisory in load_advisories(folder)]
    if as_json:
        print_json(rows)
    else:
        table = Table("advisory", "known by", "checked", f"on vLLM {asked}" if asked else "no vLLM here")
        for row in rows:
            table.add_row(row["id"], row["known_by"], row["checked"] or "never", _seen(row))
        console().print(table)
        counts = Counter(row["known_by"] for row in rows)
        console().print(f"{len(rows)} advisories: " + ", ".join(f"{counts[kind]} {kind}" for kind in KINDS))
    if any(row["differs"] for row in rows):
        raise typer.Exit(FOUND)


def _seen(row: Mapping[str, Any]) -> str:
    """Returns what the engine shows of an advisory, in words."""
    if row["problem"]:
        return f"could not be tried: {row['problem']}"
    if not row["cases"]:
        return "-"
    seen = f"seen in {row['shown']} of {row['cases']}" if row["shown"] else f"not seen in {row['cases']}"
    expected = "affected" if row["affected"] else "not affected"
    return f"{seen} ({expected}{', DIFFERS' if row['differs'] else ''})"
