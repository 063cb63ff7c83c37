"""Every route of both ports and what it takes to use it. What is not in these tables is served to nobody."""

from collections.abc import Mapping
from typing import NamedTuple


class Rule(NamedTuple):
    """The terms of one method of one route.

    Attributes:
        scope: What the caller's key must hold; `ANY_KEY` if any key does, `OPEN` if none is needed.
        pages: True if pages of other sites may use it, as far as `http.cors_origins` says so.
    """

    scope: str
    pages: bool = False


Rules = Mapping[
    str, Mapping[str, Rule]
]  # by path, then by method; a path that ends in `*` stands for all that begin so

OPEN = ""
ANY_KEY = "*"

_INFER = Rule("infer", pages=True)
_OBSERVE = {"GET": Rule("observe")}

DATA_PORT: Rules = {
    "/v1/chat/completions": {"POST": _INFER},
    "/v1/completions": {"POST": _INFER},
    "/v1/messages": {"POST": _INFER},
    "/v1/messages/count_tokens": {"POST": _INFER},
    "/v1/responses": {"POST": _INFER},
    "/v1/models": {"GET": _INFER},
    "/v1/models/*": {"GET": _INFER},
    "/v1/route/explain": {"POST": Rule("explain")},
    "/health": {"GET": Rule(OPEN, pages=True)},
    "/ready": {"GET": Rule(OPEN)},
}
DOOR: Rules = {
    "/": {"GET": Rule(OPEN)},
    "/page/*": {"GET": Rule(OPEN)},
    "/health": {"GET": Rule(OPEN)},
    "/metrics": {"GET": Rule("metrics")},
    "/v1/route/explain": {"POST": Rule("explain")},
    "/admin/v1/me": {"GET": Rule(ANY_KEY)},
    "/admin/v1/board": _OBSERVE,
    "/admin/v1/history": _OBSERVE,
    "/admin/v1/policy": _OBSERVE,
    "/admin/v1/quarantine": {"GET": Rule("observe"), "POST": Rule("operate")},
    "/admin/v1/rerun": {"GET": Rule("content")},
    "/admin/v1/audit": _OBSERVE,
    "/admin/v1/usage": _OBSERVE,
    # Whose keys a key may manage, and what it may hand out, depends on the key: the store decides.
    "/admin/v1/keys": {"GET": Rule(ANY_KEY), "POST": Rule(ANY_KEY)},
    "/admin/v1/keys/*": {"POST": Rule(ANY_KEY), "DELETE": Rule(ANY_KEY)},
    "/admin/v1/tenants": {"GET": Rule("keys")},
    "/admin/v1/tenants/*": {"PUT": Rule("keys"), "DELETE": Rule("keys")},
}


def rules_of(rules: Rules, path: str) -> Mapping[str, Rule] | None:
    """Returns the methods of a route, `HEAD` wherever there is `GET`; None for a path that is no route.

    Args:
        rules: One of the tables.
        path: ASGI's `scope["path"]`, never a URL made with the client's `Host`.
    """
    methods = rules.get(path)
    if methods is None:
        families = (known for known in rules if known.endswith("*") and path.startswith(known[:-1]))
        methods = rules.get(next(families, ""))
    if methods is not None and "GET" in methods:
        return {**methods, "HEAD": methods["GET"]}
    return methods
