"""A replica's own HTTP listener, and what it lets through: tokens take no Ray handle (docs/adr/0002)."""

import asyncio
import hmac
import os
import secrets
import socket
import ssl
import sys
from collections.abc import Iterable
from typing import Any

import uvicorn

from serve.errors import encode_json
from serve.http1.asgi import AsgiApp, Receive, Scope, Send

_LOOPBACK = "127.0.0.1"


class Listener:
    """Serves one ASGI app on a port of this node, by default a free one, inside the running event loop. The address is
    the node's own, so that other nodes of the cluster reach it and nothing else is exposed.

    Attributes:
        key: Secret that callers learn through Ray's control plane and send as a bearer token, made up if none is given.
            Without it, anybody on the network could bypass the policy by talking to an engine directly.
    """

    def __init__(self, host: str, key: str = "", port: int = 0) -> None:
        self.host = host
        self.key = key or secrets.token_urlsafe(24)
        family = socket.AF_INET6 if ":" in host else socket.AF_INET
        both = host == "::" and socket.has_dualstack_ipv6()  # all addresses of a machine are those of IPv4 too
        self._socket = socket.create_server((host, port), family=family, backlog=2048, dualstack_ipv6=both)
        self._socket.setsockopt(socket.IPPROTO_TCP, socket.TCP_NODELAY, 1)
        self.port: int = self._socket.getsockname()[1]
        self._server: uvicorn.Server | None = None
        self._task: asyncio.Task[None] | None = None

    @property
    def metadata(self) -> dict[str, Any]:
        """The address and key of the replica, for `record_replica_metadata` to publish."""
        return {"http_host": self.host, "http_port": self.port, "http_key": self.key}

    @property
    def url(self) -> str:
        return url_of(self.host, self.port)

    @property
    def ongoing(self) -> int:
        """The number of requests that are being served."""
        return len(self._server.server_state.tasks) if self._server is not None else 0

    async def start(self, app: AsgiApp, http: Any = "auto", **options: Any) -> None:
        """Starts to serve; returns when requests are accepted. `http` and the options are uvicorn's settings.

        Raises:
            RuntimeError: The start-up of the app failed.
        """
        config = uvicorn.Config(
            app,
            http=http,
            log_config=None,  # uvicorn's own closes every handler of the process, Ray Serve's among them
            log_level="warning",
            access_log=False,
            loop="none",
            lifespan="on",
            timeout_keep_alive=75,
            timeout_graceful_shutdown=1,
            **options,
        )
        self._server = uvicorn.Server(config)
        self._task = asyncio.create_task(self._server._serve([self._socket]))  # signals stay with Ray, not uvicorn
        while not self._server.started:
            if self._task.done():
                raise RuntimeError("the replica's HTTP application did not start") from self._task.exception()
            await asyncio.sleep(0.01)

    def renew(self, certfile: str, keyfile: str) -> None:
        """Serves new connections with what the files of its certificate hold now.

        Raises:
            OSError: They can't be read or do not go together, and nothing has changed.
        """
        assert self._server is not None
        assert self._server.config.ssl is not None
        check_certificate(certfile, keyfile)  # half of it would stay in force
        self._server.config.ssl.load_cert_chain(certfile, keyfile)

    def check(self) -> None:
        """Does nothing while the listener runs.

        Raises:
            RuntimeError: The listener has stopped although nobody called `stop`.
        """
        if self._task is not None and self._task.done():
            raise RuntimeError("the replica's HTTP listener has stopped") from self._task.exception()

    async def stop(self) -> None:
        """Stops the listener; Ray Serve has waited for open streams before it calls this."""
        if self._server is not None and self._task is not None:
            self._server.should_exit = True
            await self._task


def check_certificate(certfile: str, keyfile: str) -> None:
    """Does nothing if a server can use a certificate and its key.

    Raises:
        OSError: They can't be read, need a password or do not go together.
    """
    ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER).load_cert_chain(certfile, keyfile, password="")


def engine_key() -> str:
    """Returns the key of all engines that `SPECGATE_ENGINE_KEY` sets, for whoever must know it; empty without one."""
    return os.environ.get("SPECGATE_ENGINE_KEY", "")


def node_address() -> str:
    """Returns where this node's processes listen: `SPECGATE_ENGINE_HOST`, or the node's address in the Ray cluster.

    Ray gives a node an external address even where the whole cluster is one machine; `specgate serve` sets 127.0.0.1.
    """
    if host := os.environ.get("SPECGATE_ENGINE_HOST"):
        return host
    if "ray" not in sys.modules or not sys.modules["ray"].is_initialized():
        return _LOOPBACK  # a gateway on one machine does without Ray
    import ray

    node_id = ray.get_runtime_context().get_node_id()
    return next(str(node["NodeManagerAddress"]) for node in ray.nodes() if node["NodeID"] == node_id)


def url_of(host: str, port: int) -> str:
    """Returns a base URL, also for an IPv6 address."""
    return f"http://{f'[{host}]' if ':' in host else host}:{port}"


class AllowedRoutes:
    """An ASGI app around a replica's that lets listed routes through, methods and exact paths, if the request carries
    the key as its bearer token.
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
