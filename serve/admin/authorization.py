"""Every route of both ports, what it takes to use it, and the app that lets such requests through, and no others."""

import re
from collections.abc import Callable, Collection, Mapping
from typing import NamedTuple

from starlette.types import ASGIApp

from serve.access.key_text import without_secrets
from serve.access.principal import NOBODY, Authenticate, Principal
from serve.dialects.api import refusal
from serve.errors import (
    CrossSiteError,
    GatewayError,
    InsufficientScopeError,
    InvalidApiKeyError,
    MethodNotAllowedError,
    RouteNotFoundError,
)
from serve.http1.asgi import Receive, Scope, Send
from serve.http1.resolver import is_address
from serve.proxy.headers import request_headers, request_id_of

_HOST = re.compile(r"(?:\[([0-9A-Fa-f:.]+)\]|([^\[\]:/?#@\s]+))(?::\d*)?")
PRINCIPAL = "specgate.principal"  # key of the scope's `state`
OnRefusal = Callable[[Scope, Mapping[str, str], Principal | None, GatewayError], None]


class RouteRule(NamedTuple):
    """The terms of one method of one route.

    Attributes:
        scope: What the caller's key must hold; `ANY_KEY` if any key does, `OPEN` if none is needed.
        pages: True if pages of other sites may use it, as far as `http.cors_origins` says so.
    """

    scope: str
    pages: bool = False


# By path, then by method; a path that ends in `*` stands for all that begin so.
Rules = Mapping[str, Mapping[str, RouteRule]]

OPEN = ""
ANY_KEY = "*"

_INFER = RouteRule("infer", pages=True)
_OBSERVE = {"GET": RouteRule("observe")}

DATA_PORT: Rules = {
    "/": {"GET": RouteRule(OPEN)},
    "/v1/chat/completions": {"POST": _INFER},
    "/v1/completions": {"POST": _INFER},
    "/v1/messages": {"POST": _INFER},
    "/v1/messages/count_tokens": {"POST": _INFER},
    "/v1/responses": {"POST": _INFER},
    "/v1/responses/input_tokens": {"POST": _INFER},
    "/v1/models": {"GET": _INFER},
    "/v1/models/*": {"GET": _INFER},
    "/v1/route/explain": {"POST": RouteRule("explain")},
    "/health": {"GET": RouteRule(OPEN, pages=True)},
    "/ready": {"GET": RouteRule(OPEN)},
    "/version": {"GET": RouteRule(OPEN)},
}
ADMIN_PORT: Rules = {
    "/": {"GET": RouteRule(OPEN)},
    "/page/*": {"GET": RouteRule(OPEN)},
    "/health": {"GET": RouteRule(OPEN)},
    "/metrics": {"GET": RouteRule("metrics")},
    "/v1/route/explain": {"POST": RouteRule("explain")},
    "/admin/v1/me": {"GET": RouteRule(ANY_KEY)},
    "/admin/v1/board": _OBSERVE,
    "/admin/v1/history": _OBSERVE,
    "/admin/v1/policy": _OBSERVE,
    "/admin/v1/quarantine": {"GET": RouteRule("observe"), "POST": RouteRule("operate")},
    "/admin/v1/shadow": _OBSERVE,
    "/admin/v1/drafts": _OBSERVE,
    "/admin/v1/rerun": {"GET": RouteRule("content")},
    "/admin/v1/request": _OBSERVE,
    "/admin/v1/audit": _OBSERVE,
    "/admin/v1/usage": _OBSERVE,
    # Whose keys a key may manage, and what it may hand out, depends on the key: the store decides.
    "/admin/v1/keys": {"GET": RouteRule(ANY_KEY), "POST": RouteRule(ANY_KEY)},
    "/admin/v1/keys/*": {"POST": RouteRule(ANY_KEY), "DELETE": RouteRule(ANY_KEY)},
    "/admin/v1/tenants": {"GET": RouteRule("keys")},
    "/admin/v1/tenants/*": {"PUT": RouteRule("keys"), "DELETE": RouteRule("keys")},
}
# Of the gateway's two ports, what is asked for at the wrong one.
_OTHER_PORT = (
    (DATA_PORT, ", but at the gateway's own port, 8000 by default: this is the admin API."),
    (ADMIN_PORT, ", but at the admin API, which has a port of its own, 8001 by default."),
)


def rules_of(rules: Rules, path: str) -> Mapping[str, RouteRule] | None:
    """Returns the methods of a route, `HEAD` wherever there is `GET`; None for a path that is no route. The path is
    ASGI's `scope["path"]`, never a URL made with the client's `Host`.
    """
    methods = rules.get(path)
    if methods is None:
        families = (known for known in rules if known.endswith("*") and path.startswith(known[:-1]))
        methods = rules.get(next(families, ""))
    if methods is not None and "GET" in methods:
        return {**methods, "HEAD": methods["GET"]}
    return methods


class Authorized:
    """An ASGI app around another that serves the routes of a table, to those who may use them.

    Args:
        on_refusal: Told of requests that lack a key or a scope, or that a page of another site makes: their scope,
            headers, principal if known, and error.
        names: By which this server may be asked for, beside addresses and `localhost`; None for any.
    """

    def __init__(
        self,
        app: ASGIApp,
        rules: Rules,
        authenticate: Authenticate,
        on_refusal: OnRefusal = lambda *_: None,
        names: Collection[str] | None = None,
    ) -> None:
        self._names = names
        self._app = app
        self._rules = rules
        self._authenticate = authenticate
        self._on_refusal = on_refusal

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or the app's lifespan; anything else, such as a WebSocket, ends here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
            return
        if scope["type"] != "http":
            await receive()  # `websocket.connect`, which ASGI lets an app refuse by closing
            await send({"type": "websocket.close"})
            return
        try:
            self._check(scope)
        except GatewayError as error:
            await refuse(scope, send, error)
            return
        await self._app(scope, receive, send)

    def _check(self, scope: Scope) -> None:
        method, path = scope["method"], scope["path"]
        rules = rules_of(self._rules, path)
        if rules is None:
            raise RouteNotFoundError(self._unserved(without_secrets(path)))
        rule = rules.get(method)
        if rule is None:
            allowed = ", ".join(sorted(rules))
            message = f"{without_secrets(path)} is not served for {method}, but for {allowed}."
            raise MethodNotAllowedError(message, headers={"allow": allowed})
        scope.setdefault("state", {})[PRINCIPAL] = self._principal(scope, request_headers(scope["headers"]), rule)

    def _unserved(self, path: str) -> str:
        """Returns the message for a path that is no route: mostly a client's base URL has a `/v1` too many or few, or a
        slash at its end.
        """
        plain = path.rstrip("/")
        near = next((each for each in (plain, plain.removeprefix("/v1"), f"/v1{plain}") if each in self._rules), None)
        if near is not None:
            return f"{path} is not served here, but {near} is: check the client's base URL."
        return f"{path} is not served here{next((why for rules, why in _OTHER_PORT if rules_of(rules, path)), '.')}"

    def _principal(self, scope: Scope, headers: Mapping[str, str], rule: RouteRule) -> Principal:
        principal = NOBODY
        try:
            if self._names is not None:
                check_name(headers, self._names)
            if not rule.pages:
                check_same_site(headers)
            principal = self._authenticate(headers)
            if rule.scope not in (ANY_KEY, OPEN):
                principal.require(rule.scope)
        except GatewayError as error:
            if rule.scope == OPEN and not isinstance(error, CrossSiteError):
                return NOBODY
            if isinstance(error, CrossSiteError | InvalidApiKeyError | InsufficientScopeError):
                self._on_refusal(scope, headers, None if principal is NOBODY else principal, error)
            raise
        return principal


def principal_of(scope: Scope) -> Principal:
    """Returns the principal of a request that was let through."""
    principal: Principal = scope["state"][PRINCIPAL]
    return principal


def check_name(headers: Mapping[str, str], names: Collection[str]) -> None:
    """Refuses a request for a server of another name.

    A site's owner can let its name lead to our address once a page of it is loaded. To the browser, the page and we are
    the same site from then on; only the name in `Host` tells. An address can't be turned so. Headers are by lower-case
    name; names are in lower case, and come beside addresses and `localhost`.

    Raises:
        CrossSiteError: The name is not ours.
    """
    host = headers.get("host")
    if host is None:  # browsers always send one
        return
    match = _HOST.fullmatch(host)
    name = (match[1] or match[2]).lower() if match is not None else ""
    if name != "localhost" and name not in names and not is_address(name):
        raise CrossSiteError(f"{host[:100]!r} is no name of this admin API; `admin.names` lists those that are.")


def check_same_site(headers: Mapping[str, str]) -> None:
    """Refuses a request that a page of another site makes, which needs no credential that the page would lack.

    Browsers name the page's site in `Origin`, other clients send none. Headers are by lower-case name.

    Raises:
        CrossSiteError: The page's site is not this server.
    """
    origin = headers.get("origin")
    if origin is not None and origin.partition("://")[2].lower() != headers.get("host", "").lower():
        raise CrossSiteError(f"A web page of {origin[:100]} can't use an operator's route; only this server's own can.")


async def refuse(scope: Scope, send: Send, error: GatewayError) -> None:
    """Responds with an error, in the shape of the API that the client speaks."""
    given = request_headers(scope["headers"])
    status, body, named = refusal(error, scope["path"], given, request_id_of(given))
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    headers += [(name.encode(), value.encode("latin-1")) for name, value in named.items()]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": b"" if scope["method"] == "HEAD" else body})
