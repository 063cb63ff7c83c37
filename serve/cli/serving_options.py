"""The options of all commands that serve: where, to whom, and how loudly."""

import inspect
from collections.abc import Callable
from dataclasses import dataclass, fields
from pathlib import Path
from typing import Annotated, Any, get_type_hints

import typer

from serve.config.access import AccessMode

Port = Annotated[int, typer.Option(envvar="SPECGATE_PORT", min=1, max=65535, help="Port of the gateway.")]
AdminPort = Annotated[
    int | None,
    typer.Option(
        envvar="SPECGATE_ADMIN_PORT", min=1, max=65535, help="Port of the admin API. [default: 8001, or the next]"
    ),
]
Verbose = Annotated[bool, typer.Option("--verbose", "-v", help="Also print the replicas' logs.")]


@dataclass(frozen=True, slots=True)
class Serving:
    """The operator's choices for serving; each is an option."""

    port: Port = 8000
    host: Annotated[str, typer.Option(envvar="SPECGATE_HOST", help="Address to listen on; 0.0.0.0 for all.")] = (
        "127.0.0.1"
    )
    admin_port: AdminPort = None
    access: Annotated[AccessMode | None, typer.Option(help="Overrides `access.mode`: whether clients need a key.")] = (
        None
    )
    state_dir: Annotated[
        Path | None, typer.Option("--state-dir", help="Folder of the keys. [default: ~/.local/state/specgate]")
    ] = None
    verbose: Verbose = False
    stop_with_parent: Annotated[bool, typer.Option(help="Also stop when the parent process dies.")] = False


def with_serving(command: Callable[..., None]) -> Callable[..., None]:
    """Gives a command the options of `Serving`, in place of its parameter `serving`."""
    hints = get_type_hints(Serving, include_extras=True)
    options = [
        inspect.Parameter(each.name, inspect.Parameter.KEYWORD_ONLY, default=each.default, annotation=hints[each.name])
        for each in fields(Serving)
    ]

    def run(**given: Any) -> None:
        serving = Serving(**{each.name: given.pop(each.name, each.default) for each in options})
        command(**given, serving=serving)

    own = inspect.signature(command, eval_str=True).parameters.values()
    kept = [each.replace(kind=inspect.Parameter.KEYWORD_ONLY) for each in own if each.name != "serving"]
    run.__signature__ = inspect.Signature([*kept, *options])  # type: ignore[attr-defined]
    run.__name__, run.__doc__ = command.__name__, command.__doc__
    return run
