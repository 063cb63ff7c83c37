"""The routes of a replica's own listener: those of a list, all of them with the replica's key."""

import hmac
from collections.abc import Iterable

from serve.errors import encode_json
from serve.http1.asgi import AsgiApp, Receive, Scope, Send


class AllowedRoutes:
    """An ASGI app around a replica's that lets listed routes through, with the key, and nothing else.

    Args:
        app: The replica's.
        key: Bearer token that every request must carry.
        routes: Methods and paths that pass; a path matches exactly.
    """

    def __init__(self, app: AsgiApp, key: str, routes: Iterable[tuple[str, str]]) -> None:
        self._app = app
        self._expected = f"Bearer {key}".encode()
        self._routes = frozenset(routes)

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serves one request or the app's lifespan; anything else, such as a WebSocket, ends here."""
        if scope["type"] == "lifespan":
            await self._app(scope, receive, send)
        elif scope["type"] != "http":
            await receive()  # `websocket.connect`, which ASGI lets an app refuse by closing
            await send({"type": "websocket.close"})
        elif not self._has_key(scope):
            await _refuse(send, 401, "This replica answers those that have its key.", "invalid_api_key")
        elif (scope["method"], scope["path"]) not in self._routes:
            await _refuse(send, 404, f"{scope['method']} {scope['path']} is not served here.", "not_found")
        else:
            await self._app(scope, receive, send)

    def _has_key(self, scope: Scope) -> bool:
        given = [value for name, value in scope["headers"] if name == b"authorization"]
        return len(given) == 1 and hmac.compare_digest(given[0], self._expected)


async def _refuse(send: Send, status: int, message: str, code: str) -> None:
    error = {"message": message, "type": "invalid_request_error", "param": None, "code": code}
    body = encode_json({"error": error})
    headers = [(b"content-type", b"application/json"), (b"content-length", b"%d" % len(body))]
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body})
