"""Keys and tenants as the commands reach them: at the admin API, or in the store's file without a gateway.

Both say the same in JSON's terms, and raise `GatewayError` or `ConfigError` for what is refused.
"""

import sqlite3
from collections.abc import Iterator
from contextlib import closing, contextmanager
from pathlib import Path
from typing import Annotated, Any, get_args
from urllib.parse import quote, urlencode

import typer

from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_record import issued_object, key_object, tenant_object
from serve.access.key_store import FILE_NAME, KeyStore
from serve.access.principal import DEFAULT_TENANT
from serve.cli.admin_api import ask
from serve.config.access import AccessConfig, RightName
from serve.errors import ConfigError

StateDir = Annotated[
    Path | None, typer.Option("--state-dir", help="Use the store in this `access.state_dir` instead of the admin API.")
]
Object = dict[str, Any]


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


def open_store(folder: Path) -> KeyStore:
    """Returns the store in a folder, made if it is missing.

    Raises:
        ConfigError: It can't be opened.
    """
    try:
        return KeyStore(folder)
    except (sqlite3.Error, OSError) as error:
        raise ConfigError(f"{folder / FILE_NAME} can't be used as a store of keys: {error}") from error


def first_key(config: AccessConfig) -> str | None:
    """Returns the token of a new key with every right, if access is required and the store holds no key yet.

    Raises:
        ConfigError: The store can't be opened.
    """
    if config.mode == "off" or config.state_dir is None:
        return None
    with closing(open_store(Path(config.state_dir))) as store:
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
        if not equals or not (value.isdecimal() or value == "true"):
            raise ConfigError(f"--limit {each}: a limit is NAME=NUMBER, such as tokens_per_minute=60000")
        limits[name] = True if value == "true" else int(value)
    return limits
