"""Every command and option, from the Typer application."""

import inspect
import typing
from collections import Counter
from collections.abc import Container, Iterable, Iterator
from pathlib import Path
from typing import Any

import typer

import serve
from docs._generate.markdown import code
from serve.cli import app

Row = tuple[str, str, str]

_ROOT = Path(serve.__file__).parents[1]
_COMMON = 3  # a parameter that so many commands share is described once, above all of them


def commands() -> Iterator[tuple[str, Any]]:
    """Yields the full name of every command, and the command."""
    yield from _leaves("specgate", typer.main.get_command(app))


def common_options() -> str:
    """Returns a list of the parameters that several commands have in common."""
    return _list(_common())


def sections() -> str:
    """Returns one section for each command."""
    common = _common()
    return "\n\n".join(_section(name, command, common) for name, command in commands())


def names(parameter: Any) -> list[str]:
    """Returns the spellings of an option, or the placeholder of an argument."""
    if _is_option(parameter):
        return [*parameter.opts, *parameter.secondary_opts]
    return [_placeholder(parameter)]


def _leaves(name: str, command: Any) -> Iterator[tuple[str, Any]]:
    children = getattr(command, "commands", None)
    if children is None:
        yield name, command
        return
    for child_name, child in children.items():
        yield from _leaves(f"{name} {child_name}", child)


def _section(name: str, command: Any, common: Container[Row]) -> str:
    arguments = [parameter for parameter in command.params if not _is_option(parameter)]
    parts = [f"## {name}"]
    if arguments:
        parts.append(f"```text\n{' '.join((name, *map(_placeholder, arguments), '[OPTIONS]'))}\n```")
    parts.append(inspect.cleandoc(command.help or ""))
    rows = _rows(command)
    if own := [row for row in rows if row not in common]:
        parts.append(_list(own))
    if shared := [row[0] for row in rows if row in common]:
        parts.append(f"[Common](#common-options): {', '.join(shared)}.")
    return "\n\n".join(part for part in parts if part)


def _common() -> list[Row]:
    """Returns the rows that several commands share, in the order in which they first occur."""
    uses = Counter(_row(parameter) for _, command in commands() for parameter in command.params)
    return [row for row, count in uses.items() if count >= _COMMON]


def _list(rows: Iterable[Row]) -> str:
    """Returns a line for each parameter, as a manual page has it."""
    return "\n".join(f"- {names}{f' ({terms})' if terms else ''}: {text}" for names, terms, text in rows)


def _rows(command: Any) -> list[Row]:
    return [_row(parameter) for parameter in command.params if not getattr(parameter, "hidden", False)]


def _is_option(parameter: Any) -> bool:
    return bool(parameter.opts[0].startswith("-"))


def _row(parameter: Any) -> Row:
    text = (parameter.help or "").strip()
    if parameter.envvar:
        text = f"{text} Variable: `{parameter.envvar}`."
    terms = "; ".join(filter(None, (_type_of(parameter), _default_of(parameter))))
    return ", ".join(map(code, names(parameter))), terms, text.strip()


def _placeholder(parameter: Any) -> str:
    return str(getattr(parameter, "metavar", None) or parameter.name.upper())


def _type_of(parameter: Any) -> str:
    if getattr(parameter, "is_flag", False):
        return ""
    annotation = parameter.type_descriptor.annotation
    many = typing.get_origin(annotation) is list
    if many:
        annotation = typing.get_args(annotation)[0]
    if typing.get_origin(annotation) is typing.Literal:
        return ", ".join(code(str(value)) for value in typing.get_args(annotation))
    kind = {str: "text", int: "integer", float: "number", Path: "path"}.get(annotation, str(annotation))
    if many:
        kind += ", repeatable"
    bounds = [f"≥ {parameter.min:g}"] if parameter.min is not None and (parameter.min <= 0 or parameter.max) else []
    bounds += [f"≤ {parameter.max:g}"] if parameter.max is not None else []
    if len(bounds) > 1:
        bounds = [f"{parameter.min:g} to {parameter.max:g}"]
    return " ".join((kind, *bounds))


def _default_of(parameter: Any) -> str:
    default = parameter.default
    if callable(default):  # worked out when the command runs
        return code(parameter.show_default)
    if parameter.required:
        return "required"
    if default is None or default is False or default in ("", []):
        return ""
    if default is True:
        return "on by default"
    if isinstance(default, Path) and default.is_relative_to(_ROOT):
        default = default.relative_to(_ROOT)
    return code(f"{default:g}" if isinstance(default, float) else str(default))
