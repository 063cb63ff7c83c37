"""`specgate tenants`: the terms of the teams that share a gateway."""

from collections.abc import Mapping, Sequence
from typing import Annotated

import typer
from pydantic import TypeAdapter, ValidationError

from serve.access.key_file import TenantRow
from serve.cli.admin_api import LOCAL, Url
from serve.cli.key_service import Object, StateDir, key_service, limits_of, limits_of_models
from serve.cli.output import Json, console, print_json, print_table
from serve.config.access import TenantName
from serve.config.problems import first_problem
from serve.errors import ConfigError

app = typer.Typer(help="List, set and remove the terms of tenants.", no_args_is_help=True)

Tenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]


@app.command("set")
def set_terms(
    name: Tenant,
    url: Url = LOCAL,
    weight: Annotated[float, typer.Option(help="Its share where tenants compete.")] = 1.0,
    limit: Annotated[
        list[str] | None, typer.Option(help="A limit of all its keys, as tokens_per_minute=60000; may be repeated.")
    ] = None,
    model_limit: Annotated[
        list[str] | None,
        typer.Option(help="A further limit for one model, as MODEL:requests_per_minute=60; may be repeated."),
    ] = None,
    priority_ceiling: Annotated[str, typer.Option(help="The first priority of its requests.")] = "interactive",
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Replace a tenant's terms; what is not given has its default."""
    fields = {
        "weight": weight,
        "limits": limits_of(limit or []),
        "model_limits": limits_of_models(model_limit or []),
        "priority_ceiling": priority_ceiling,
    }
    try:
        TypeAdapter[str](TenantName).validate_python(name)
        terms = TenantRow.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(first_problem(error, name)) from error
    with key_service(url, state_dir, begins=True) as keys:
        tenant = keys.set_tenant(name, terms)
    if as_json:
        print_json(tenant)
    else:
        text = f"{name} has weight {tenant['weight']:g} and the limits {_limits(tenant['limits']) or 'none'}"
        of_models = "".join(f"; of {model}: {_limits(each)}" for model, each in tenant["model_limits"].items())
        console().print(text + of_models, markup=False)


@app.command("remove")
def remove(name: Tenant, url: Url = LOCAL, state_dir: StateDir = None) -> None:
    """Remove a tenant's terms; it must have no key."""
    with key_service(url, state_dir) as keys:
        keys.remove_tenant(name)
    console().print(f"removed the terms of {name}", markup=False)


@app.command("list")
def list_all(url: Url = LOCAL, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the tenants with terms of their own in the store."""
    with key_service(url, state_dir) as keys:
        tenants = keys.tenants()
    if as_json:
        print_json(tenants)
        return
    print_table(("tenant", "weight", "limits", "limits of models", "first priority"), map(_row, tenants))


def _row(tenant: Object) -> Sequence[str]:
    of_models = "; ".join(f"{model}: {_limits(each)}" for model, each in tenant["model_limits"].items())
    terms = (f"{tenant['weight']:g}", _limits(tenant["limits"]), of_models, tenant["priority_ceiling"])
    return (tenant["name"], *terms)


def _limits(limits: Mapping[str, float | None]) -> str:
    """Returns limits as they are given on the command line."""
    return ", ".join(f"{name}={value:.15g}" for name, value in limits.items() if value is not None)
