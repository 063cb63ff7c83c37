"""Output of all commands: JSON on standard output for scripts, tables for people, errors and exit codes for both.

Exit codes: 0 for success, 1 if the command found what it looks for (a hazard, an unclean cell, a changed decision), 2
for wrong input.
"""

import json
import sys
from typing import Annotated, Any

import typer
from rich.console import Console
from typer.core import TyperGroup

from policies import PolicyError
from serve.errors import ConfigError, GatewayError

FOUND = 1
WRONG_INPUT = 2

Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a report.")]


class Commands(TyperGroup):
    """Reports errors that wrong input causes as one line and an exit code instead of a traceback."""

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: The input is wrong.
        """
        try:
            return super().invoke(ctx)
        except (ConfigError, PolicyError, GatewayError, OSError) as error:
            Console(stderr=True, highlight=False).print(f"specgate: {error}", style="red", markup=False, soft_wrap=True)
            raise typer.Exit(WRONG_INPUT) from error


def console() -> Console:
    """Returns a console for reports; wide enough for tables if standard output is not a terminal."""
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False)


def print_json(value: Any) -> None:
    """Print one JSON document, indented."""
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")
