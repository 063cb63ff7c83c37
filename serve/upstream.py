"""HTTP to a replica: one request, and its answer as bytes."""

import asyncio
import ssl
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager

import aiohttp

from serve.config import LimitsConfig
from serve.errors import DeadlineError, EngineError, GatewayError, PoolUnavailableError
from serve.router import Endpoint


class Answer:
    """A replica's answer whose first bytes have arrived, so it is known to be one.

    Attributes:
        status: HTTP status.
        headers: Response headers.
        first: The first bytes of the body; empty if there is no body.
    """

    def __init__(self, response: aiohttp.ClientResponse, first: bytes) -> None:
        self.status = response.status
        self.headers: Mapping[str, str] = response.headers
        self.first = first
        self._content = response.content

    @property
    def is_stream(self) -> bool:
        """Whether the body is an SSE stream."""
        return self.headers.get("content-type", "").startswith("text/event-stream")

    async def rest(self) -> AsyncIterator[bytes]:
        """What follows `first`, as it arrives; several frames at once when the reader is slower than the engine.

        Raises:
            EngineError: The connection broke before the body was complete.
        """
        while True:
            try:
                data = await self._content.readany()
            except TimeoutError as error:
                raise EngineError("The engine stopped sending.", None, "engine_stalled") from error
            except aiohttp.ClientError as error:
                raise EngineError("The connection to the engine broke in the middle of the answer.") from error
            if not data:
                return
            yield data

    async def body(self) -> bytes:
        """The whole body."""
        return b"".join([self.first, *[part async for part in self.rest()]])


class Upstream:
    """A connection pool to all replicas of all pools."""

    def __init__(self, limits: LimitsConfig) -> None:
        self._limits = limits
        self._session = aiohttp.ClientSession(
            connector=aiohttp.TCPConnector(limit=0, keepalive_timeout=60),
            timeout=aiohttp.ClientTimeout(
                total=None, sock_connect=limits.connect_timeout_s, sock_read=limits.stream_idle_timeout_s
            ),
            auto_decompress=False,
            cookie_jar=aiohttp.DummyCookieJar(),
            skip_auto_headers=("user-agent", "accept", "accept-encoding"),
            read_bufsize=2**18,
        )

    @asynccontextmanager
    async def post(
        self, endpoint: Endpoint, path: str, body: bytes, headers: Mapping[str, str]
    ) -> AsyncIterator[Answer]:
        """Send a request and wait for the first bytes of its answer.

        Leaving the context closes the connection unless the answer was read to its end; vLLM then aborts the request,
        in prefill as well as in the middle of the answer.

        Raises:
            PoolUnavailableError: Nobody answered there; another replica may.
            DeadlineError: The first byte did not come in time.
        """
        try:
            response = await self._session.post(endpoint.url + path, data=body, headers=headers, allow_redirects=False)
            try:
                first = await response.content.readany()
            except BaseException:
                response.close()
                raise
        except (aiohttp.ClientError, ssl.SSLError, OSError) as error:
            raise _no_answer(error, self._limits.retry_after_s) from error
        try:
            yield Answer(response, first)
        finally:
            response.release() if response.content.at_eof() else response.close()

    async def close(self) -> None:
        await self._session.close()


def _no_answer(error: Exception, retry_after_s: float) -> GatewayError:
    if isinstance(error, (asyncio.TimeoutError, aiohttp.SocketTimeoutError)) and not isinstance(
        error, aiohttp.ConnectionTimeoutError
    ):
        return DeadlineError("The engine did not begin to answer in time.")
    return PoolUnavailableError("The engine is not answering; try again shortly.", None, None, retry_after_s)
