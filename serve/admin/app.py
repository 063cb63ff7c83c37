"""The admin API's HTTP side: who may do what is decided by the table of routes; what is done, by a gateway replica."""

import asyncio
import json
import logging
import sqlite3
from collections.abc import Collection, Iterable, Mapping
from contextlib import suppress
from typing import Any
from urllib.parse import urlencode

import fastapi
from fastapi.exceptions import RequestValidationError
from fastapi.responses import JSONResponse, Response
from prometheus_client import CONTENT_TYPE_LATEST
from starlette.exceptions import HTTPException

from serve import VERSION
from serve.access.key_store import KeyStore
from serve.access.key_text import without_secrets
from serve.access.principal import MODELS_HEADER, Authenticate, Principal
from serve.admin.audit import AuditEntry, AuditLog, Refusals
from serve.admin.authorization import ADMIN_PORT, Authorized, principal_of
from serve.admin.board import drafts_known
from serve.admin.keys import KeysApi
from serve.admin.merged_metrics import AUDIT_FAILING, exposed, merge
from serve.admin.page import SECURITY_HEADERS, Page, tagged
from serve.admin.replicas import GatewayReplicas, Watch, ask, metrics_of
from serve.dialects.body import read_object
from serve.errors import (
    GatewayError,
    InsufficientScopeError,
    InvalidRequestError,
    PoolUnavailableError,
    RouteNotFoundError,
    SharedStateError,
    StorageError,
    encode_json,
)
from serve.http1.asgi import AsgiApp, AsgiMessage, Receive, Scope, Send
from serve.http1.client import HttpResponse
from serve.proxy.headers import request_headers, request_id_of
from serve.quarantine.live_policy import PREVIEW_HEADER
from serve.request.receive import read_body
from serve.routing.pool import Endpoint
from serve.shadow.pairs import listing

log = logging.getLogger("ray.serve.specgate.admin")

_MAX_ORDER_BYTES = 64 * 1024
_MAX_AUDIT_LINES = 1000
_RETRY_AFTER_S = 2.0
_QUARANTINE = "/admin/v1/quarantine"
# Of a caller's headers; the rest is the request's own and tells about it, as the data port would see it.
_WITHHELD = frozenset(
    {b"authorization", b"x-api-key", b"cookie", b"host", b"connection", b"content-length", b"transfer-encoding",
     b"accept-encoding", b"expect", b"origin", MODELS_HEADER.encode(), PREVIEW_HEADER.encode()}
)  # fmt: skip


class AdminRoutes:
    """The admin API's routes. Without a store of keys, their routes say what is missing. Names are as of `Authorized`;
    `models` are the own names of models by all that callers may use.
    """

    def __init__(
        self,
        replicas: GatewayReplicas,
        watch: Watch,
        audit: AuditLog,
        authenticate: Authenticate,
        max_body_bytes: int,
        keys: KeyStore | None = None,
        names: Collection[str] | None = None,
        models: Mapping[str, str] | None = None,
    ) -> None:
        self._keys = keys
        self._models = models or {}
        self._names = names
        self._replicas = replicas
        self._watch = watch
        self._audit = audit
        self._refusals = Refusals(audit)
        self._authenticate = authenticate
        self._max_body_bytes = max_body_bytes

    def app(self) -> AsgiApp:
        app = fastapi.FastAPI(title="specgate admin API", docs_url=None, redoc_url=None, openapi_url=None)
        page = Page()
        read = ["GET", "HEAD"]
        app.add_api_route("/", page.index, methods=read)
        app.add_api_route("/page/{name}", page.file, methods=read)
        app.add_api_route("/health", self.health, methods=read)
        app.add_api_route("/metrics", self.metrics, methods=read)
        app.add_api_route("/v1/route/explain", self.explain, methods=["POST"])
        app.add_api_route("/admin/v1/me", self.me, methods=read)
        app.add_api_route("/admin/v1/board", self.board, methods=read)
        app.add_api_route("/admin/v1/history", self.history, methods=read)
        app.add_api_route("/admin/v1/policy", self.forwarded, methods=read)
        app.add_api_route(_QUARANTINE, self.forwarded, methods=read)
        app.add_api_route(_QUARANTINE, self.order, methods=["POST"])
        app.add_api_route("/admin/v1/shadow", self.shadow, methods=read)
        app.add_api_route("/admin/v1/drafts", self.drafts, methods=read)
        app.add_api_route("/admin/v1/usage", self.usage, methods=read)
        app.add_api_route("/admin/v1/rerun", self.rerun, methods=read)
        app.add_api_route("/admin/v1/request", self.request, methods=read)
        app.add_api_route("/admin/v1/audit", self.audit, methods=read)
        if self._keys is not None:
            app.include_router(KeysApi(self._keys, self._changes, self._models).routes())
        else:
            for path in (
                "/admin/v1/keys",
                "/admin/v1/keys/{_:path}",
                "/admin/v1/tenants",
                "/admin/v1/tenants/{_:path}",
            ):
                app.add_api_route(path, self.without_keys, methods=["GET", "HEAD", "POST", "PUT", "DELETE"])
        app.add_exception_handler(GatewayError, self._failed)
        app.add_exception_handler(sqlite3.Error, _store_failed)
        app.add_exception_handler(RequestValidationError, _malformed)
        app.add_exception_handler(HTTPException, _unserved)
        app.add_exception_handler(Exception, _broken)
        return _Secured(Authorized(app, ADMIN_PORT, self._authenticate, self._refused, self._names))

    async def run(self) -> None:
        """Writes how many refused calls have no line of their own, from time to time, forever."""
        await self._refusals.run()

    async def health(self) -> dict[str, str]:
        """Returns 200 while this process serves, and specgate's version."""
        return {"status": "ok", "version": VERSION}

    async def without_keys(self) -> None:
        """Says what a gateway without a store of keys lacks.

        Raises:
            RouteNotFoundError: Always.
        """
        message = "This gateway has no store of keys and tenants: set `access.state_dir`, a folder on the head node."
        raise RouteNotFoundError(message)

    async def me(self, request: fastapi.Request) -> dict[str, Any]:
        """Tells a caller who it is and what it may do."""
        principal = principal_of(request.scope)
        return {"key": principal.key_id, "tenant": principal.tenant.name, "scopes": sorted(principal.scopes)}

    async def board(self, request: fastapi.Request) -> Response:
        """Returns the state of the cluster, or 304 if the caller has it already; a header has the newest audit hash."""
        response = tagged(request, *await self._watch.board(), "application/json")
        response.headers["x-specgate-audit"] = self._audit.last
        return response

    async def history(self, model: str = "", pool: str = "") -> dict[str, Any]:
        """Returns the last half hour of one pool, or of all together."""
        return self._watch.series((model, pool) if pool else None)

    async def audit(self, limit: int = 100) -> dict[str, Any]:
        """Returns the newest lines of the audit log that this admin API has written, newest first."""
        return {"object": "list", "data": self._audit.recent(max(0, min(limit, _MAX_AUDIT_LINES)))}

    async def shadow(self) -> dict[str, Any]:
        """Returns the verdict on every candidate pool, from the pairs of all gateway replicas."""
        snapshots, _ = await self._replicas.snapshots()
        rows = [row for snapshot in snapshots.values() for row in snapshot["shadows"]]
        return {"object": "list", "data": listing(rows)}

    async def drafts(self) -> dict[str, Any]:
        """Returns what is known of each pool's drafts by class."""
        snapshots, _ = await self._replicas.snapshots()
        return {"object": "list", "data": drafts_known(snapshots.values())}

    async def metrics(self) -> Response:
        """Returns the metrics of all gateway replicas and all engines of this cluster, for Prometheus."""
        snapshots, _ = await self._replicas.snapshots()
        sources: dict[Endpoint, Mapping[str, str]] = {
            endpoint: {"replica": name} for name, endpoint in self._replicas.running().items()
        }
        for snapshot in snapshots.values():
            for pool in snapshot["pools"]:
                if pool["kind"] != "remote":  # those are somebody else's
                    labels = {"model": pool["model"], "pool": pool["pool"]}
                    for engine in pool["engines"]:
                        url, key = engine["url"], engine["key"]
                        sources[Endpoint(url, key)] = {"replica": url.partition("://")[2], **labels}
        texts = await asyncio.gather(*map(metrics_of, sources))
        own = exposed(AUDIT_FAILING, self._audit.failing)
        merged = await asyncio.to_thread(merge, [*zip(sources.values(), texts, strict=True), ({}, own)])
        return Response(merged, media_type=CONTENT_TYPE_LATEST)

    async def explain(self, request: fastapi.Request) -> Response:
        """Explains the decision for a body; see the data port's route of the same name."""
        body = await read_body(request.receive, request_headers(request.headers.raw), self._max_body_bytes)
        return _response(await self._ask(request, body))

    async def forwarded(self, request: fastapi.Request) -> Response:
        """Returns what a gateway replica tells."""
        return _response(await self._ask(request))

    async def usage(self, request: fastapi.Request) -> Response:
        """Returns sums of usage.

        Raises:
            RouteNotFoundError: Gateway replicas do not count it.
        """
        answer = await self._ask(request)
        if answer.status == 404:
            raise RouteNotFoundError(
                "Usage is not counted here: set `rate_limits.enabled: true`, or ask for keys with `access.mode: "
                "required`."
            )
        return _response(answer)

    async def rerun(self, request: fastapi.Request, request_id: str = "") -> dict[str, Any]:
        """Returns what engines sent for a request that was rerun; the audit log gets a line before anybody reads it.

        Raises:
            RouteNotFoundError: No gateway replica keeps it, or not any more.
        """
        kept = await self._found("/admin/v1/rerun", request_id)
        if kept is not None:
            self._write(request, "content.read", f"rerun of request {request_id}", "")
            return {"object": "rerun", **kept}
        message = "Nothing is kept of that request: only the last reruns are, and only with `admin.rerun_content`."
        raise RouteNotFoundError(message, param="request_id")

    async def request(self, request_id: str = "") -> dict[str, Any]:
        """Returns what became of one of the last requests, given its `x-request-id`; no content.

        Raises:
            RouteNotFoundError: No gateway replica remembers it.
        """
        found = await self._found("/admin/v1/request", request_id)
        if found is None:
            message = "No gateway replica remembers that request: each keeps its last 2,000, until it restarts."
            raise RouteNotFoundError(message, param="request_id")
        return {"object": "request", **found}

    async def _found(self, path: str, request_id: str) -> Any:
        """Returns what a gateway replica says that knows a request; None if none does. Where several do, a client has
        taken another's id, or its own again: the one to whose request we gave that id counts, or else the first.
        """
        known = None
        query = urlencode({"request_id": request_id})
        for name, endpoint in self._replicas.running().items():
            try:
                answer = await ask(endpoint, "GET", f"{path}?{query}")
            except PoolUnavailableError as error:
                log.warning("gateway replica %s: %s", name, error)
                continue
            if answer.status == 200 and (found := json.loads(answer.body)["data"]) is not None:
                if found.get("engine_id", request_id) == request_id:
                    return found
                known = known or found
        return known

    async def order(self, request: fastapi.Request) -> Response:
        """Takes an order about a pool in quarantine; the audit log gets a line before it takes effect."""
        body = await read_body(request.receive, request_headers(request.headers.raw), _MAX_ORDER_BYTES)
        order = read_object(body)
        signed = encode_json({**order, "operator": principal_of(request.scope).key_id})
        before = await self._ask(request, method="GET")
        outcome = await self._ask(request, signed, headers=[(PREVIEW_HEADER.encode(), b"true")])
        if outcome.status != 200:
            return _response(outcome)
        action, what = f"quarantine.{order['action']}", _name_of(order)
        states = (_state_of(order, json.loads(each.body)) for each in (before, outcome))
        self._write(request, action, what, order["reason"], *states)
        try:
            answer = await self._ask(request, signed)
        except GatewayError as error:
            self._not_done(request, action, what, error.code)
            raise
        if answer.status != 200:
            self._not_done(request, action, what, f"HTTP status {answer.status}")
        return _response(answer)

    def _not_done(self, request: fastapi.Request, action: str, what: str, why: str) -> None:
        """Writes that something of which there is a line has not happened after all."""
        with suppress(StorageError):
            self._write(request, f"{action}.failed", what, why)

    async def _ask(
        self, request: fastapi.Request, body: bytes = b"", method: str = "", headers: Iterable[tuple[bytes, bytes]] = ()
    ) -> HttpResponse:
        """Asks one gateway replica after the other until one answers. The method is the caller's by default; headers
        are added to the caller's.
        """
        passed = [(name, value) for name, value in request.headers.raw if name not in _WITHHELD]
        passed.append((MODELS_HEADER.encode(), ",".join(principal_of(request.scope).models).encode()))
        query = request.scope["query_string"].decode("latin-1")
        path = request.scope["path"] + (f"?{query}" if query else "")
        method = method or request.method.replace("HEAD", "GET")
        for name, endpoint in self._replicas.running().items():
            try:
                return await ask(endpoint, method, path, body, [*passed, *headers])
            except PoolUnavailableError as error:
                log.warning("gateway replica %s: %s", name, error)
                self._replicas.forget(name)
        raise PoolUnavailableError("No gateway replica answers; try again shortly.", retry_after_s=_RETRY_AFTER_S)

    def _changes(self, request: fastapi.Request, action: str, what: str, before: Any, after: Any) -> None:
        self._write(request, action, what, "", before, after)

    async def _failed(self, request: fastapi.Request, error: Exception) -> Response:
        if isinstance(error, InsufficientScopeError):  # the route's own rule was kept, the store's was not
            scope = request.scope
            self._refused(scope, request_headers(scope["headers"]), principal_of(request.scope), error)
        assert isinstance(error, GatewayError)
        return _error_response(error)

    def _write(
        self, request: fastapi.Request, action: str, what: str, reason: str, before: Any = None, after: Any = None
    ) -> None:
        principal = principal_of(request.scope)
        headers = request_headers(request.headers.raw)
        self._audit.write(
            AuditEntry(
                principal.key_id, principal.tenant.name, _source(request.scope), action, what, before, after,
                request_id_of(headers), reason,
            )
        )  # fmt: skip

    def _refused(
        self, scope: Scope, headers: Mapping[str, str], principal: Principal | None, error: GatewayError
    ) -> None:
        key, tenant = error.key_id, error.tenant  # of a key that is valid no more
        if principal is not None:
            key, tenant = principal.key_id, principal.tenant.name
        what = f"{scope['method']} {scope['path']}"
        request_id = request_id_of(headers)
        self._refusals.write(
            AuditEntry(key, tenant, _source(scope), "refused", what, request_id=request_id, reason=error.code)
        )


class _Secured:
    """An ASGI app whose every response tells browsers what they may do with it."""

    def __init__(self, app: AsgiApp) -> None:
        self._app = app
        self._headers = [(name.encode(), value.encode()) for name, value in SECURITY_HEADERS.items()]

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        async def secured(message: AsgiMessage) -> None:
            if message["type"] == "http.response.start":
                message = {**message, "headers": [*message.get("headers", ()), *self._headers]}
            await send(message)

        await self._app(scope, receive, secured)


async def _store_failed(_: fastapi.Request, error: Exception) -> Response:
    name = getattr(error, "sqlite_errorname", "")
    log.error("the store of keys can't be used: %s (%s)", error, name)
    if name == "SQLITE_BUSY":
        message = "Nothing was changed: another process holds the store of keys. Try again shortly."
        failed: GatewayError = SharedStateError(message, retry_after_s=_RETRY_AFTER_S)
    else:
        failed = StorageError(
            f"Nothing was changed: the store of keys in `access.state_dir` can't be used ({error}). Make room on its "
            "disk or mend it, and ask again; keys that were valid go on."
        )
    return _error_response(failed)


async def _malformed(_: fastapi.Request, error: Exception) -> Response:
    assert isinstance(error, RequestValidationError)
    first = error.errors()[0]
    name = str(first["loc"][-1])
    return _error_response(InvalidRequestError(f"{name}: {first['msg']}", param=name))


async def _unserved(request: fastapi.Request, _: Exception) -> Response:
    """Answers for a path that begins like a route's and is none."""
    scope = request.scope
    message = f"{without_secrets(scope['path'])} is not served here for {scope['method']}."
    return _error_response(RouteNotFoundError(message))


async def _broken(*_: object) -> Response:
    """Answers for an error of ours; the server's log has its traceback."""
    failed = GatewayError("The admin API failed; its log says why. Look at the state of things before you try again.")
    return _error_response(failed)


def _error_response(error: GatewayError) -> Response:
    return Response(error.to_json(), error.status, error.headers, media_type="application/json")


def _response(answer: HttpResponse) -> Response:
    passed = {name: value for name, value in answer.headers.items() if name in ("retry-after", "x-specgate-evidence")}
    return JSONResponse(json.loads(answer.body), answer.status, passed)


def _source(scope: Scope) -> str:
    client = scope.get("client")
    return str(client[0]).removeprefix("::ffff:") if client else ""  # IPv4 at a listener of both


def _name_of(order: Mapping[str, Any]) -> str:
    return f"{order['model']}/{order['pool']} {order['request_class']}"


def _state_of(order: Mapping[str, Any], listing: Mapping[str, Any]) -> list[dict[str, Any]]:
    """Returns the state of the cells that an order is about."""
    wanted = {name: order[name] for name in ("model", "pool", "request_class")}
    if order.get("speculative") is not None:
        wanted["speculative"] = order["speculative"]
    shown = ("speculative", "status", "held", "by", "why")
    return [
        {name: cell[name] for name in shown}
        for cell in listing.get("data", ())
        if all(cell[name] == value for name, value in wanted.items())
    ]
