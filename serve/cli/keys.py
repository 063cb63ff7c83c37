"""`specgate keys`: makes, lists, rotates and revokes API keys."""

import sys
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Annotated, Any

import typer
from pydantic import ValidationError

from serve.access.key_file import KeyTerms, key_row, read_key_file
from serve.access.key_record import IssuedKey, issued_object
from serve.access.key_store import GRACE_S, issue, rotated
from serve.access.token import claimed_id
from serve.cli.admin_api import LOCAL, Url
from serve.cli.key_service import Object, StateDir, key_service, limits_of
from serve.cli.output import Json, console, print_json, print_table
from serve.config.problems import first_problem
from serve.errors import ConfigError

app = typer.Typer(help="Make, list, rotate and revoke API keys.", no_args_is_help=True)

_PERSON_DAYS = 90.0
_HOUR_S = 3600.0


def _id_in(given: str) -> str:
    """Returns a key's id, also from a whole token, whose secret belongs in no request, log or message."""
    return claimed_id(given) or given


KeyId = Annotated[
    str, typer.Argument(metavar="ID", help="The key's id: the part of the token after `sgk_`.", callback=_id_in)
]


@app.command("create")
def create(
    tenant: Annotated[str, typer.Option(help="The tenant whose key it is.")],
    url: Url = LOCAL,
    name: Annotated[str, typer.Option(help="For people.")] = "",
    scope: Annotated[list[str] | None, typer.Option(help="What it may do; may be repeated. [default: infer]")] = None,
    model: Annotated[
        list[str] | None, typer.Option(help="Models that it may use, `*` for any characters; may be repeated.")
    ] = None,
    limit: Annotated[
        list[str] | None, typer.Option(help="A limit of its own, as tokens_per_minute=60000; may be repeated.")
    ] = None,
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


@app.command("rotate")
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
    """Give a key a new secret, and print its token; both are valid for a while."""
    grace_s = grace_hours * _HOUR_S
    if file is not None:
        known = {key.id: key for key in read_key_file(file)[1]}
        if key_id not in known:
            raise ConfigError(f"{file} has no key with the id {key_id}")
        _print_row(rotated(known[key_id], datetime.now(UTC).timestamp() + grace_s), as_json)
        return
    with key_service(url, state_dir) as keys:
        _show(keys.rotate(key_id, grace_s), as_json)


@app.command("revoke")
def revoke(key_id: KeyId, url: Url = LOCAL, state_dir: StateDir = None, as_json: Json = False) -> None:
    """Revoke a key on all gateway replicas within two seconds."""
    with key_service(url, state_dir) as keys:
        key = keys.revoke(key_id)
    if as_json:
        print_json(key)
    else:
        console().print(f"revoked {key['id']} ({key['name'] or 'no name'}) of {key['tenant']}", markup=False)


@app.command("list")
def list_all(
    url: Url = LOCAL,
    tenant: Annotated[str | None, typer.Option(help="Only this tenant's.")] = None,
    state_dir: StateDir = None,
    as_json: Json = False,
) -> None:
    """List the keys of the store; those of `access.file` are in that file."""
    with key_service(url, state_dir) as keys:
        found = keys.keys(tenant)
    if as_json:
        print_json(found)
        return
    rows = (
        (key["id"], key["tenant"], key["name"], " ".join(key["scopes"]), " ".join(key["models"]),
         key["expires"] or "never", key["last_used"] or "never")
        for key in found
    )  # fmt: skip
    print_table(("id", "tenant", "name", "scopes", "models", "expires", "last used"), rows)


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
    if unmatched := key.get("unmatched_models"):
        names = ", ".join(unmatched)
        sys.stderr.write(
            f"warning: no model is called {names} now: the key gets 404 until one is (own names, no aliases)\n"
        )
