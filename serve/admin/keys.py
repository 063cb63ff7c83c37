"""The admin API's routes for keys and tenants. What a caller may do with whose keys, the store decides."""

from collections.abc import Callable
from typing import Annotated, Any, TypeVar

import fastapi
from pydantic import BaseModel, ConfigDict, Field, TypeAdapter, ValidationError

from serve.access.key_file import KeyTerms, TenantRow
from serve.access.key_store import GRACE_S, KeyStore
from serve.access.listing import issued_object, key_object, tenant_object
from serve.access.principal import Principal
from serve.admin.authorization import PRINCIPAL
from serve.config.access import TenantName
from serve.errors import InvalidRequestError
from serve.proxy.headers import request_headers
from serve.request.incoming import read_body

_MAX_BODY_BYTES = 64 * 1024
_NO_STORE = {"cache-control": "no-store"}
# The request, what was done, to what, and its state before and after.
Audit = Callable[[fastapi.Request, str, str, Any, Any], None]
Body = TypeVar("Body", bound=BaseModel)
_TENANT_NAME = TypeAdapter[str](TenantName)


class RotationBody(BaseModel):
    """The body of a rotation.

    Attributes:
        grace_s: For how long the old secret stays valid.
    """

    model_config = ConfigDict(frozen=True, extra="forbid")

    grace_s: Annotated[float, Field(ge=0, le=90 * 24 * 3600)] = GRACE_S


class KeysApi:
    """The routes.

    Args:
        store: Of the keys and tenants.
        audit: Gets every change.
    """

    def __init__(self, store: KeyStore, audit: Audit) -> None:
        self._store = store
        self._audit = audit

    def routes(self) -> fastapi.APIRouter:
        """Returns the routes."""
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
        return _listing([key_object(key) for key in self._store.keys(_principal(request), tenant)])

    async def create(self, request: fastapi.Request, response: fastapi.Response) -> dict[str, Any]:
        """Makes a key; the response is the only place where its token is ever seen."""
        issued = self._store.create(await _body(request, KeyTerms), _principal(request))
        self._audit(request, "keys.create", issued.key.id, None, key_object(issued.key))
        response.headers.update(_NO_STORE)
        return issued_object(issued)

    async def rotate(self, request: fastapi.Request, response: fastapi.Response, key_id: str) -> dict[str, Any]:
        """Gives a key another secret; the old one stays valid for a while."""
        grace_s = (await _body(request, RotationBody)).grace_s
        issued = self._store.rotate(key_id, grace_s, _principal(request))
        self._audit(request, "keys.rotate", issued.key.id, None, key_object(issued.key))
        response.headers.update(_NO_STORE)
        return issued_object(issued)

    async def revoke(self, request: fastapi.Request, key_id: str) -> dict[str, Any]:
        """Ends a key for ever; within two seconds no replica takes it any more."""
        key = key_object(self._store.revoke(key_id, _principal(request)))
        self._audit(request, "keys.revoke", key_id, key, None)
        return key

    async def tenants(self) -> dict[str, Any]:
        """Lists the tenants that have terms of their own in the store."""
        return _listing([tenant_object(tenant) for tenant in self._store.tenants()])

    async def set_tenant(self, request: fastapi.Request, name: str) -> dict[str, Any]:
        """Gives a tenant terms in place of those that it had."""
        try:
            _TENANT_NAME.validate_python(name)
        except ValidationError as error:
            raise InvalidRequestError(f"{name[:64]!r} can't be the name of a tenant.", param="name") from error
        terms = await _body(request, TenantRow)
        before = [tenant_object(tenant) for tenant in self._store.tenants() if tenant.name == name]
        after = tenant_object(self._store.set_tenant(name, terms, _principal(request)))
        self._audit(request, "tenants.set", name, before, after)
        return after

    async def remove_tenant(self, request: fastapi.Request, name: str) -> dict[str, Any]:
        """Takes a tenant's terms away; it must have no key."""
        before = [tenant_object(tenant) for tenant in self._store.tenants() if tenant.name == name]
        self._store.remove_tenant(name, _principal(request))
        self._audit(request, "tenants.remove", name, before, None)
        return {"name": name}


def _listing(objects: list[dict[str, Any]]) -> dict[str, Any]:
    return {"object": "list", "data": objects}


def _principal(request: fastapi.Request) -> Principal:
    principal: Principal = request.scope["state"][PRINCIPAL]
    return principal


async def _body(request: fastapi.Request, kind: type[Body]) -> Body:
    """Returns the body of a request, in which every field must be one that may be set; none at all is an empty one.

    Raises:
        InvalidRequestError: It is not valid.
    """
    data = await read_body(request.receive, request_headers(request.headers.raw), _MAX_BODY_BYTES)
    try:
        return kind.model_validate_json(data or b"{}")
    except ValidationError as error:
        first = error.errors(include_input=False)[0]
        where = ".".join(map(str, first["loc"]))
        raise InvalidRequestError(f"{where or 'the body'}: {first['msg']}", param=where or None) from None
