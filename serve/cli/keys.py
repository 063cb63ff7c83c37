"""`specgate keys` and `specgate tenants`: API keys, and the terms of the teams that share a gateway.

Both reach them at the admin API, or in the store's file without a gateway, which say the same in JSON's terms, and
raise `GatewayError` or `ConfigError` for what is refused.
"""

import sys
from collections.abc import Iterator, Mapping, Sequence
from contextlib import closing, contextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote, urlencode

import typer
from pydantic import TypeAdapter, ValidationError

from serve.access.key_file import KeyTerms, TenantRow, key_row, read_key_file
from serve.access.key_record import IssuedKey, issued_object, key_object, tenant_object
from serve.access.key_store import FILE_NAME, GRACE_S, KeyStore, issue, open_store, rotated
from serve.access.key_text import claimed_id
from serve.access.principal import DEFAULT_TENANT
from serve.cli.admin import LOCAL, Url, ask
from serve.cli.output import Json, console, print_json, print_rows
from serve.config.access import AccessConfig, RightName, TenantName
from serve.config.problems import first_problem
from serve.errors import ConfigError

keys_app = typer.Typer(help="Make, list, rotate and revoke API keys.", no_args_is_help=True)
tenants_app = typer.Typer(help="List, set and remove the terms of tenants.", no_args_is_help=True)

Object = dict[str, Any]
_PERSON_DAYS = 90.0
_HOUR_S = 3600.0
StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Use the store in this `access.state_dir` instead of the admin API.")
]
Tenant = Annotated[str, typer.Argument(metavar="NAME", help="The tenant.")]


class AdminKeys:
    """Keys at the admin API of a running gateway."""

    def __init__(self, url: str) -> None:
        self._url = url

    def create(self, terms: KeyTerms) -> Object:
        return self._ask("POST", "keys", terms.model_dump(mode="json"))

    def rotate(self, key_id: str, grace_s: float) -> Object:
        return self._ask("POST", f"keys/{quote(key_id, safe='')}/rotate", {"grace_s": grace_s})

    def revoke(self, key_id: str) -> Object:
        return self._ask("DELETE", f"keys/{quote(key_id, safe='')}")

    def keys(self, tenant: str | None) -> list[Object]:
        listed: list[Object] = self._ask("GET", f"keys?{urlencode({'tenant': tenant})}" if tenant else "keys")["data"]
        return listed

    def set_tenant(self, name: str, terms: TenantRow) -> Object:
        return self._ask("PUT", f"tenants/{quote(name, safe='')}", terms.model_dump(mode="json"))

    def remove_tenant(self, name: str) -> None:
        self._ask("DELETE", f"tenants/{quote(name, safe='')}")

    def tenants(self) -> list[Object]:
        listed: list[Object] = self._ask("GET", "tenants")["data"]
        return listed

    def _ask(self, method: str, path: str, body: Any = None) -> Object:
        answer: Object = ask(method, self._url, f"/admin/v1/{path}", body)
        return answer


class StoredKeys:
    """Keys in the store's file; a gateway that runs hears of changes within two seconds."""

    def __init__(self, store: KeyStore) -> None:
        self._store = store

    def create(self, terms: KeyTerms) -> Object:
        return issued_object(self._store.create(terms))

    def rotate(self, key_id: str, grace_s: float) -> Object:
        return issued_object(self._store.rotate(key_id, grace_s))

    def revoke(self, key_id: str) -> Object:
        return key_object(self._store.revoke(key_id))

    def keys(self, tenant: str | None) -> list[Object]:
        return [key_object(key) for key in self._store.keys(tenant=tenant)]

    def set_tenant(self, name: str, terms: TenantRow) -> Object:
        return tenant_object(self._store.set_tenant(name, terms))

    def remove_tenant(self, name: str) -> None:
        self._store.remove_tenant(name)

    def tenants(self) -> list[Object]:
        return [tenant_object(tenant) for tenant in self._store.tenants()]


@contextmanager
def key_service(url: str, state_dir: Path | None, *, begins: bool = False) -> Iterator[AdminKeys | StoredKeys]:
    """Yields the keys that a command is about. Without a folder of the store, they are reached through the admin API. A
    command that `begins` makes the store if there is none: whoever looks for a key in it has named another folder
    instead.

    Raises:
        ConfigError: The folder can't hold a store, or it holds none.
    """
    if state_dir is None:
        yield AdminKeys(url)
        return
    if not begins and not (state_dir / FILE_NAME).exists():
        raise ConfigError(f"{state_dir / FILE_NAME} does not exist: is this the `access.state_dir` of a gateway?")
    with closing(open_store(state_dir)) as store:
        yield StoredKeys(store)


def first_key(config: AccessConfig) -> str | None:
    """Returns the token of a new key with every right, if access is required and the store holds no key yet.

    Raises:
        ConfigError: The store can't be used.
    """
    if config.mode == "off" or config.state_dir is None:
        return None
    with closing(open_store(Path(config.state_dir), mends=True)) as store:  # the gateway's, which starts
        if store.keys():
            return None
        return store.create(KeyTerms(tenant=DEFAULT_TENANT, name="first", scopes=get_args(RightName))).token


def limits_of_models(given: list[str]) -> dict[str, dict[str, Any]]:
    """Returns limits by model and name, from `MODEL:NAME=VALUE`.

    Raises:
        ConfigError: One has another form.
    """
    by_model: dict[str, list[str]] = {}
    for each in given:
        model, colon, limit = each.rpartition(":")  # a model's name may hold colons, a limit's does not
        if not colon or not model:
            raise ConfigError(f"--model-limit {each}: it is MODEL:NAME=NUMBER, such as kimi:requests_per_minute=60")
        by_model.setdefault(model, []).append(limit)
    return {model: limits_of(limits) for model, limits in by_model.items()}


def limits_of(given: list[str]) -> dict[str, Any]:
    """Returns limits by name, from `NAME=VALUE`.

    Raises:
        ConfigError: One has another form.
    """
    limits: dict[str, Any] = {}
    for each in given:
        name, equals, value = each.partition("=")
        if not equals or not (value.isdecimal() or (name, value) == ("shadow", "true")):
            raise ConfigError(f"--limit {each}: a limit is NAME=NUMBER, such as tokens_per_minute=60000")
        limits[name] = True if value == "true" else int(value)
    return limits


def _id_in(given: str) -> str:
    """Returns a key's id, also from a whole token, whose secret belongs in no request, log or message."""
    return claimed_id(given) or given


KeyId = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id: the part of the token after `sgk_`.", callback=_id_in)
]


@keys_app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="The tenant whose key it is.")],
    url: Url = LOCAL,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="What it may do. [default: infer]")] = None,
    model: Annotated[list[str] | None, typer.Option(help="Models that it may use, `*` for any characters.")] = None,
    limit: Annotated[list[str] | None, typer.Option(help="A limit of its own, as tokens_per_minute=60000.")] = None,
    expires_days: Annotated[
        float | None, typer.Option(min=0, max=36500, help="Days until it ends; by default never.")
    ] = (None),
    person: Annotated[bool, typer.Option("--person", help=f"For a person: it ends after {_PERSON_DAYS:g} days.")] = (
        False
    ),
    file: Annotated[bool, typer.Option("--file", help="Only print the row for `access.file`; store nothing.")] = False,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Make a key, and print its token, which is never shown again."""
    days = _PERSON_DAYS if person and expires_days is None else expires_days
    terms = _terms(
        tenant=tenant,
        name=name,
        scopes=scope or ["infer"],
        models=model or ["*"],
        limits=limits_of(limit or []),
        expires=datetime.now(UTC) + timedelta(days=days) if days is not None else None,
    )
    if file:
        _print_row(issue(terms, datetime.now(UTC).timestamp()), as_json)
        return
    with key_service(url, state_dir, begins=True) as keys:
        _show(keys.create(terms), as_json)


@keys_app.command("rotate")
def rotate(
    key_id: KeyId,
    url: Url = LOCAL,
    grace_hours: Annotated[
        float, typer.Option(min=0, max=90 * 24, help="Hours for which the old secret stays valid.")
    ] = (GRACE_S / _HOUR_S),
    file: Annotated[
        Path | None, typer.Option("--file", help="Only print the row that takes the key's place in this file.")
    ] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """Give a key a new secret, and print its token; the old one is valid for a while, an older one no more."""
    grace_s = grace_hours * _HOUR_S
    if file is not None:
        known = {key.id: key for key in read_key_file(file)[1]}
        if key_id not in known:
            raise ConfigError(f"{file} has no key with the id {key_id}")
        _print_row(rotated(known[key_id], datetime.now(UTC).timestamp() + grace_s), as_json)
        return
    with key_service(url, state_dir) as keys:
        key = keys.rotate(key_id, grace_s)
    _show(key, as_json)
    if not as_json:
        sys.stderr.write(f"The secret before is valid until {key['old_secret_until']}; any older one has ended.\n")


@keys_app.command("revoke")
def revoke(key_id: KeyId, url: Url = LOCAL, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Revoke a key on all gateway replicas within two seconds."""
    with key_service(url, state_dir) as keys:
        key = keys.revoke(key_id)
    if as_json:
        print_json(key)
    else:
        console().print(f"revoked {key['id']} ({key['name'] or 'no name'}) of {key['tenant']}")


@keys_app.command("list")
def list_all(
    url: Url = LOCAL,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the keys of the store; those of `access.file` are in that file."""
    with key_service(url, state_dir) as keys:
        found = keys.keys(tenant)
    print_rows(found, as_json, ("id", "tenant", "name", "scopes", "models", "expires", "last used"), _key_row)


def _key_row(key: Object) -> Sequence[str]:
    may = " ".join(key["scopes"]), " ".join(key["models"])
    return (key["id"], key["tenant"], key["name"], *may, key["expires"] or "never", key["last_used"] or "never")


def _terms(**fields: Any) -> KeyTerms:
    try:
        return KeyTerms.model_validate(fields)
    except ValidationError as error:
        raise ConfigError(first_problem(error, "the key")) from error


def _print_row(issued: IssuedKey, as_json: bool) -> None:
    """Prints the key's row for the declarative file where it can be appended to that, and the token beside it."""
    row = key_row(issued.key)
    if as_json:
        print_json({**issued_object(issued), "row": row})
        return
    sys.stdout.write(row)
    sys.stderr.write(f"The token, shown only once: {issued.token}\n")


def _show(key: Object, as_json: bool) -> None:
    if as_json:
        print_json(key)
        return
    sys.stdout.write(f"{key['token']}\n")
    ends = f", ends {key['expires']}" if key["expires"] else ""
    sys.stderr.write(f"Key {key['id']} of {key['tenant']}{ends}. The token is shown only this once.\n")
    _warn_of_models(key, "the key gets 404 until one is (own names, no aliases)")


def _warn_of_models(made: Object, consequence: str) -> None:
    if unmatched := made.get("unmatched_models"):
        sys.stderr.write(f"warning: no model is called {', '.join(unmatched)} now: {consequence}\n")


@tenants_app.command("set")
def set_terms(
    name: Tenant,
    url: Url = LOCAL,
    weight: Annotated[float, typer.Option(help="Its share where tenants compete.")] = 1.0,
    limit: Annotated[
        list[str] | None, typer.Option(help="A limit of all its keys, as tokens_per_minute=60000.")
    ] = None,
    model_limit: Annotated[
        list[str] | None,
        typer.Option(help="A further limit for one model, as MODEL:requests_per_minute=60."),
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
        console().print(text + of_models)
        _warn_of_models(tenant, "its limit counts for nothing until one is")


@tenants_app.command("remove")
def remove(name: Tenant, url: Url = LOCAL, state_dir: StateDir = None) -> None:
    """Remove a tenant's terms; it must have no key."""
    with key_service(url, state_dir) as keys:
        keys.remove_tenant(name)
    console().print(f"removed the terms of {name}")


@tenants_app.command("list")
def list_tenants(url: Url = LOCAL, state_dir: StateDir = None, as_json: Json = False) -> None:
    """List the tenants with terms of their own in the store."""
    with key_service(url, state_dir) as keys:
        tenants = keys.tenants()
    print_rows(tenants, as_json, ("tenant", "weight", "limits", "limits of models", "first priority"), _row)


def _row(tenant: Object) -> Sequence[str]:
    of_models = "; ".join(f"{model}: {_limits(each)}" for model, each in tenant["model_limits"].items())
    terms = (f"{tenant['weight']:g}", _limits(tenant["limits"]), of_models, tenant["priority_ceiling"])
    return (tenant["name"], *terms)


def _limits(limits: Mapping[str, float | None]) -> str:
    """Returns limits as they are given on the command line."""
    return ", ".join(f"{name}={value:.15g}" for name, value in limits.items() if value is not None)
