"""How commands speak: JSON on standard output for scripts, tables for people, errors and exit codes for both.

Exit codes: 0 all well, 1 the command found what it looks for (a hazard, an unclean cell, a changed decision), 2 the
input is wrong.
"""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from policies import PolicyError
from serve.errors import ConfigError, GatewayError

FOUND, WRONG_INPUT = 1, 2

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a report.")]


class Commands(TyperGroup):
    """Turns the errors that a wrong file or a wrong value causes into one line and an exit code."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command."""
        try:
            return super().invoke(ctx)
        except (ConfigError, PolicyError, GatewayError, OSError) as error:
            Console(stderr=True, highlight=False).print(f"specgate: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(WRONG_INPUT) from error


def console() -> Console:
    """For reports; wide enough for tables when it is no terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def print_json(value: Any) -> None:
    """One document, readable and stable."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")
