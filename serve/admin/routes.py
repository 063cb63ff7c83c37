"""Every route of both ports and what it takes to use it. What is not in these tables is served to nobody."""

from collections.abc import Mapping
from typing import NamedTuple


class RouteRule(NamedTuple):
    """The terms of one method of one route.

    Attributes:
        scope: What the caller's key must hold; `ANY_KEY` if any key does, `OPEN` if none is needed.
        pages: True if pages of other sites may use it, as far as `http.cors_origins` says so.
    """

    scope: str
    pages: bool = False


Rules = Mapping[
    str, Mapping[str, RouteRule]
]  # by path, then by method; a path that ends in `*` stands for all that begin so

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
