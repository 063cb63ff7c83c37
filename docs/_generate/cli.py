"""Every command and option, from the Typer application."""

import inspect
import typing
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import typer

import serve
from docs._generate.markdown import code, table
from serve.cli import app

_ROOT = Path(serve.__file__).parents[1]


def commands() -> Iterator[tuple[str, Any]]:
    """Yields the full name of every command, and the command."""
    yield from _leaves("specgate", typer.main.get_command(app))


def sections() -> str:
    """Returns one section for each command."""
    return "\n\n".join(_section(name, command) for name, command in commands())


def names(parameter: Any) -> list[str]:
    """Returns the spellings of an option, or the placeholder of an argument."""
    if parameter.opts[0].startswith("-"):
        return [*parameter.opts, *parameter.secondary_opts]
    return [_placeholder(parameter)]


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        yield from _leaves(f"{name} {child_name}", child)


def _section(name: str, command: Any) -> str:
    arguments = [parameter for parameter in command.params if not parameter.opts[0].startswith("-")]
    usage = " ".join((name, *map(_placeholder, arguments), "[OPTIONS]"))
    parts = [f"## {name}", f"```text\n{usage}\n```", inspect.cleandoc(command.help or "")]
    rows = [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]
    if rows:
        parts.append(table(("option", "type", "default", "meaning"), rows))
    return "\n\n".join(part for part in parts if part)


def _row(parameter: Any) -> tuple[str, str, str, str]:
    text = (parameter.help or "").strip()
    if parameter.envvar:
        text = f"{text} Environment variable: `{parameter.envvar}`."
    return ", ".join(map(code, names(parameter))), _type_of(parameter), _default_of(parameter), text.strip()


def _placeholder(parameter: Any) -> str:
    return str(getattr(parameter, "metavar", None) or parameter.name.upper())


def _type_of(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return "flag"
    annotation = parameter.type_descriptor.annotation
    if parameter.multiple:  # list[str]
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(code(str(value)) for value in typing.get_args(annotation))
    kind = {str: "text", int: "integer", float: "number", Path: "path"}.get(annotation, str(annotation))
    if parameter.multiple:
        kind += ", repeatable"
    bounds = [f"≥ {parameter.min:g}"] if parameter.min is not None else []
    bounds += [f"≤ {parameter.max:g}"] if parameter.max is not None else []
    return " ".join((kind, " and ".join(bounds))).strip()


def _default_of(parameter: Any) -> str:
    default = parameter.default
    if callable(default):  # worked out when the command runs
        return code(parameter.show_default)
    if parameter.required:
        return "required"
    if default is None or default is False or default == []:
        return ""
    if default is True:
        return "on"
    if isinstance(default, Path) and default.is_relative_to(_ROOT):
        default = default.relative_to(_ROOT)
    return code(f"{default:g}" if isinstance(default, float) else str(default))
