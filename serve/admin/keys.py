"""The admin API's routes for keys and tenants. What a caller may do with whose keys, the store decides."""

import sqlite3
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager, suppress
from fnmatch import fnmatchcase
from typing import Annotated, Any, TypeVar

import fastapi
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_record import issued_object, key_object, tenant_object
from serve.access.key_store import GRACE_S, KeyStore
from serve.admin.authorization import principal_of
from serve.config.access import TenantName
from serve.config.problems import first_problem
from serve.errors import InvalidRequestError, StorageError
from serve.proxy.headers import request_headers
from serve.request.receive import read_body

_MAX_BODY_BYTES = 64 * 1024
_NO_STORE = {"cache-control": "no-store"}
# The request, what is done, to what, and its state before and after. Raises `StorageError` if it can't write.
Audit = Callable[[fastapi.Request, str, str, Any, Any], None]
Witness = Callable[[str, Any, Any], None]  # to what, and its state before and after
Body = TypeVar("Body", bound=BaseModel)
_TENANT_NAME = TypeAdapter[str](TenantName)


class RotationBody(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")

    grace_s: Annotated[float, Field(ge=0, le=90 * 24 * 3600)] = GRACE_S


class KeysApi:
    def __init__(self, store: KeyStore, audit: Audit, models: Mapping[str, str]) -> None:
        self._store = store
        self._audit = audit
        self._models = models

    def routes(self) -> fastapi.APIRouter:
        router = fastapi.APIRouter()
        read = ["GET", "HEAD"]
        router.add_api_route("/admin/v1/keys", self.keys, methods=read)
        router.add_api_route("/admin/v1/keys", self.create, methods=["POST"])
        router.add_api_route("/admin/v1/keys/{key_id}/rotate", self.rotate, methods=["POST"])
        router.add_api_route("/admin/v1/keys/{key_id}", self.revoke, methods=["DELETE"])
        router.add_api_route("/admin/v1/tenants", self.tenants, methods=read)
        router.add_api_route("/admin/v1/tenants/{name}", self.set_tenant, methods=["PUT"])
        router.add_api_route("/admin/v1/tenants/{name}", self.remove_tenant, methods=["DELETE"])
        return router

    async def keys(self, request: fastapi.Request, tenant: str | None = None) -> dict[str, Any]:
        """Lists the keys that the caller may manage, or those of one tenant."""
        return _listing([key_object(key) for key in self._store.keys(principal_of(request.scope), tenant)])

    async def create(self, request: fastapi.Request, response: fastapi.Response) -> dict[str, Any]:
        """Makes a key; the response is the only place where its token is ever seen.

        It names as well what the key's `models` allow and no model is called.
        """
        terms = await _body(request, KeyTerms)
        with self._witness(request, "keys.create") as witness:
            issued = self._store.create(
                terms, principal_of(request.scope), lambda key: witness(key.id, None, key_object(key))
            )
        response.headers.update(_NO_STORE)
        own_names = {*self._models.values()}
        unmatched = [each for each in terms.models if not any(fnmatchcase(model, each) for model in own_names)]
        return {**issued_object(issued), **self._unmatched(unmatched)}

    async def rotate(self, request: fastapi.Request, response: fastapi.Response, key_id: str) -> dict[str, Any]:
        """Gives a key another secret; the old one stays valid for a while."""
        grace_s = (await _body(request, RotationBody)).grace_s
        with self._witness(request, "keys.rotate") as witness:
            issued = self._store.rotate(
                key_id, grace_s, principal_of(request.scope), lambda key: witness(key.id, None, key_object(key))
            )
        response.headers.update(_NO_STORE)
        return issued_object(issued)

    async def revoke(self, request: fastapi.Request, key_id: str) -> dict[str, Any]:
        """Ends a key for ever; within two seconds no replica takes it any more."""
        with self._witness(request, "keys.revoke") as witness:
            key = self._store.revoke(
                key_id, principal_of(request.scope), lambda key: witness(key.id, key_object(key), None)
            )
        return key_object(key)

    async def tenants(self) -> dict[str, Any]:
        """Lists the tenants that have terms of their own in the store."""
        return _listing([tenant_object(tenant) for tenant in self._store.tenants()])

    async def set_tenant(self, request: fastapi.Request, name: str) -> dict[str, Any]:
        """Gives a tenant terms in place of those that it had, and names the models with limits that do not exist."""
        try:
            _TENANT_NAME.validate_python(name)
        except ValidationError as error:
            raise InvalidRequestError(f"{name[:64]!r} can't be the name of a tenant.", param="name") from error
        terms = await _body(request, TenantRow)
        before = [tenant_object(tenant) for tenant in self._store.tenants() if tenant.name == name]
        with self._witness(request, "tenants.set") as witness:
            tenant = self._store.set_tenant(
                name, terms, principal_of(request.scope), lambda tenant: witness(name, before, tenant_object(tenant))
            )
        return {**tenant_object(tenant), **self._unmatched(sorted(terms.model_limits.keys() - self._models.keys()))}

    async def remove_tenant(self, request: fastapi.Request, name: str) -> dict[str, Any]:
        """Takes a tenant's terms away; it must have no key."""
        before = [tenant_object(tenant) for tenant in self._store.tenants() if tenant.name == name]
        with self._witness(request, "tenants.remove") as witness:
            self._store.remove_tenant(name, principal_of(request.scope), lambda: witness(name, before, None))
        return {"name": name}

    def _unmatched(self, names: list[str]) -> dict[str, list[str]]:
        return {"unmatched_models": names} if names and self._models else {}

    @contextmanager
    def _witness(self, request: fastapi.Request, action: str) -> Iterator[Witness]:
        """Yields what writes a change down before it takes effect; if it then does not, another line says so."""
        written: list[str] = []

        def witness(what: str, before: Any, after: Any) -> None:
            self._audit(request, action, what, before, after)
            written.append(what)

        try:
            yield witness
        except sqlite3.Error:
            for what in written:
                with suppress(StorageError):
                    self._audit(request, f"{action}.failed", what, None, None)
            raise


def _listing(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": objects}


async def _body(request: fastapi.Request, kind: type[Body]) -> Body:
    """Returns the body of a request, in which every field must be one that may be set; none at all is an empty one."""
    data = await read_body(request.receive, request_headers(request.headers.raw), _MAX_BODY_BYTES)
    try:
        return kind.model_validate_json(data or b"{}")
    except ValidationError as error:
        where = ".".join(map(str, error.errors(include_input=False)[0]["loc"])) or None
        raise InvalidRequestError(first_problem(error, "the body"), param=where) from None
