"""`specgate quarantine`: which pools of a running gateway are out for which requests, and an operator's word on it."""

from collections.abc import Callable
from typing import Annotated, Any

import httpx
import typer
from rich.table import Table

from serve.cli.output import Json, console, print_json
from serve.errors import ConfigError

app = typer.Typer(help="Pools that took themselves out, or were taken out, of a running gateway.", no_args_is_help=True)

Url = Annotated[str, typer.Option("--url", "-u", help="The gateway's base URL, without /v1.")]
Model = Annotated[str, typer.Argument(help="The model as the configuration names it.")]
Pool = Annotated[str, typer.Argument(help="One of its pools.")]
Class = Annotated[str, typer.Argument(metavar="CLASS", help="Request class, such as tools_auto or json_schema+strict.")]
Reason = Annotated[str, typer.Option("--reason", help="Why; the next operator will ask.")]
Speculative = Annotated[
    bool | None,
    typer.Option("--speculative/--no-speculative", help="Of a pool that can do both; by default what it does first."),
]
_LOCAL = "http://127.0.0.1:8000"
_TIMEOUT_S = 10.0


@app.command("list")
def list_all(url: Url = _LOCAL, as_json: Json = False) -> None:
    """List every pool and class that was counted, with clean-rate, bounds and status."""
    _show(_ask("GET", url), as_json)


def _order(action: str, does: str) -> Callable[..., None]:
    """A command that orders `action` for one cell."""

    def command(
        model: Model,
        pool: Pool,
        request_class: Class,
        reason: Reason,
        speculative: Speculative = None,
        url: Url = _LOCAL,
        as_json: Json = False,
    ) -> None:
        cell = {"model": model, "pool": pool, "request_class": request_class, "speculative": speculative}
        _show(_ask("POST", url, {"action": action, "reason": reason, **cell}), as_json)

    command.__doc__ = does
    return command


_ORDERS = {
    "set": ("quarantine", "Take a pool out for a class of requests, until an operator lifts it."),
    "lift": ("lift", "Let a pool serve a class again; it is judged from then on as a new one is."),
    "pin": ("pin", "Let a pool serve a class whatever the counts say, until an operator lifts it."),
}
for _name, _what in _ORDERS.items():
    app.command(_name)(_order(*_what))


def _ask(method: str, url: str, body: Any = None) -> list[dict[str, Any]]:
    try:
        answer = httpx.request(method, f"{url.rstrip('/')}/v1/quarantine", json=body, timeout=_TIMEOUT_S)
        told = answer.json()
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        raise ConfigError(f"no gateway answers at {url}: {error}; --url names its address") from error
    except ValueError as error:
        raise ConfigError(f"{url} answers {answer.status_code} without JSON: it is no specgate gateway") from error
    if answer.status_code != httpx.codes.OK:
        raise ConfigError(told.get("error", {}).get("message", f"{url} answers {answer.status_code}"))
    cells: list[dict[str, Any]] = told["data"]
    return cells


def _show(cells: list[dict[str, Any]], as_json: bool) -> None:
    if as_json:
        print_json(cells)
        return
    if not cells:
        console().print("nothing counted yet: no answer with tools or JSON was judged")
        return
    table = Table("model", "pool", "speculation", "class", "status", "answers", "clean", "bad rate, surely", "why")
    for cell in cells:
        clean = "" if cell["clean_rate"] is None else f"{cell['clean_rate']:.1%}"
        between = f"{cell['bad_rate_at_least']:.1%} to {cell['bad_rate_at_most']:.1%}"
        how = "on" if cell["speculative"] else "off"
        table.add_row(
            cell["model"], cell["pool"], how, cell["request_class"], _status(cell),
            str(cell["answers"]), clean, between if cell["answers"] else "", cell["why"],
        )  # fmt: skip
    console().print(table)


def _status(cell: dict[str, Any]) -> str:
    by = " by operator" if cell["held"] else ""
    if cell["status"] == "quarantined":
        return f"[red]out{by}[/]"
    return f"[cyan]pinned{by}[/]" if cell["held"] else "reference" if cell["reference"] else "[green]in[/]"
