"""`specgate quarantine`: lists a running gateway's quarantined pools; quarantines, releases or pins one."""

from collections.abc import Callable, Sequence
from typing import Annotated, Any

import typer

from serve.cli.admin_api import LOCAL, Url, ask
from serve.cli.output import Json, console, print_json, print_table

app = typer.Typer(help="List, set, lift or pin quarantines in a running gateway.", no_args_is_help=True)

Model = Annotated[str, typer.Argument(help="The model's name in the configuration.")]
Pool = Annotated[str, typer.Argument(help="One of its pools.")]
Class = Annotated[str, typer.Argument(metavar="CLASS", help="Request class, such as tools_auto or json_schema+strict.")]
Reason = Annotated[str, typer.Option("--reason", help="The reason, for the next operator.")]
Speculative = Annotated[
    bool | None,
    typer.Option("--speculative/--no-speculative", help="For pools that can do both; by default their main mode."),
]


@app.command("list")
def list_all(url: Url = LOCAL, as_json: Json = False) -> None:
    """List every counted pool and request class: clean rate, bounds and status."""
    _show(_ask("GET", url), as_json)


def _command(action: str, description: str) -> Callable[..., None]:
    """Returns a command that applies `action` to one pool and request class."""

    def command(
        model: Model,
        pool: Pool,
        request_class: Class,
        reason: Reason,
        speculative: Speculative = None,
        url: Url = LOCAL,
        as_json: Json = False,
    ) -> None:
        cell = {"model": model, "pool": pool, "request_class": request_class, "speculative": speculative}
        _show(_ask("POST", url, {"action": action, "reason": reason, **cell}), as_json)

    command.__doc__ = description
    return command


_ACTIONS = {
    "set": ("quarantine", "Quarantine a pool for a request class until an operator lifts it."),
    "lift": ("lift", "Release a pool for a request class; its counts start over."),
    "pin": ("pin", "Keep a pool in service for a request class until an operator lifts the pin."),
}
for _name, (_action, _description) in _ACTIONS.items():
    app.command(_name)(_command(_action, _description))


def _ask(method: str, url: str, body: Any = None) -> list[dict[str, Any]]:
    cells: list[dict[str, Any]] = ask(method, url, "/admin/v1/quarantine", body)["data"]
    return cells


def _show(cells: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(cells)
        return
    if not cells:
        console().print("no counts yet: no answer with tools or JSON has been checked")
        return
    columns = ("model", "pool", "speculation", "class", "status", "answers", "clean", "bad rate, bounds", "why")
    print_table(columns, map(_row, cells))


def _row(cell: dict[str, Any]) -> Sequence[str]:
    clean = "" if cell["clean_rate"] is None else f"{cell['clean_rate']:.1%}"
    bounds = f"{cell['bad_rate_at_least']:.1%} to {cell['bad_rate_at_most']:.1%}" if cell["answers"] else ""
    speculation = "on" if cell["speculative"] else "off"
    place = (cell["model"], cell["pool"], speculation, cell["request_class"])
    return (*place, _status(cell), str(cell["answers"]), clean, bounds, cell["why"])


def _status(cell: dict[str, Any]) -> str:
    by = " by operator" if cell["held"] else ""
    if cell["status"] == "quarantined":
        return f"[red]out{by}[/]"
    return f"[cyan]pinned{by}[/]" if cell["held"] else "reference" if cell["reference"] else "[green]in[/]"
