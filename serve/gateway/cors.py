"""Web pages of other sites: they may use the inference routes if the configuration says so."""

from collections.abc import Collection, Sequence

from starlette.middleware.cors import CORSMiddleware
from starlette.types import ASGIApp

from serve.http1.asgi import AsgiApp, Receive, Scope, Send

_MODELS = "/v1/models"
EXPOSED = (
    "request-id", "retry-after", "x-ratelimit-limit-requests", "x-ratelimit-limit-tokens",
    "x-ratelimit-remaining-requests", "x-ratelimit-remaining-tokens", "x-ratelimit-reset-requests",
    "x-ratelimit-reset-tokens", "x-request-id", "x-should-retry", "x-specgate-dropped", "x-specgate-estimate",
    "x-specgate-pool", "x-specgate-reasons", "x-specgate-rerun", "x-specgate-speculative",
)  # fmt: skip
_PREFLIGHT_VALID_S = 600


def with_cors(app: AsgiApp, origins: Sequence[str]) -> AsgiApp:
    """Returns the app with preflights answered, and headers that let pages of some sites read its responses.

    `origins` are the sites, or `*`; without any, the app is returned as it is.
    """
    return _with_cors(app, origins) if origins else app


class InferenceCors:
    """ASGI middleware: `with_cors` for the inference routes of an app, which are those of the models beside `paths`."""

    def __init__(self, app: ASGIApp, origins: Sequence[str], paths: Collection[str]) -> None:
        self._app = app
        self._shared = _with_cors(app, origins)
        self._paths = frozenset(paths)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        path = scope.get("path", "")
        is_inference = path in self._paths or path == _MODELS or path.startswith(_MODELS + "/")
        await (self._shared if is_inference and scope["type"] == "http" else self._app)(scope, receive, send)


def _with_cors(app: ASGIApp, origins: Sequence[str]) -> CORSMiddleware:
    return CORSMiddleware(
        app,
        allow_origins=origins,
        allow_methods=("GET", "POST"),
        allow_headers=("*",),
        expose_headers=EXPOSED,
        max_age=_PREFLIGHT_VALID_S,
    )
