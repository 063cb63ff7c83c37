"""One request and its whole answer, on a connection of its own: for questions now and then, not for inference."""

import asyncio
from collections.abc import Iterable, Mapping
from dataclasses import dataclass

from serve.http1.connection_pool import ConnectionPool, Origin
from serve.http1.message import encode_head

_CONNECT_TIMEOUT_S = 2.0
MAX_ANSWER_BYTES = 64 * 2**20


@dataclass(frozen=True, slots=True)
class HttpResponse:
    """A whole HTTP response.

    Attributes:
        headers: By lower-case name.
    """

    status: int
    headers: Mapping[str, str]
    body: bytes


async def fetch(
    url: str,
    key: str | None,
    method: str,
    path: str,
    body: bytes = b"",
    headers: Iterable[tuple[bytes, bytes]] = (),
    timeout_s: float = 10.0,
    most_bytes: int = MAX_ANSWER_BYTES,
    authorities: str | None = None,
) -> HttpResponse:
    """Sends a request; follows no redirect. The path behind the server's base URL has its query, and the key goes into
    the header `authorization`. What is beyond `most_bytes` of the answer is not read; `authorities` are as of
    `ConnectionPool`.

    Raises:
        OSError: It does not answer, or not in time.
    """
    origin = Origin.of(url)
    fields = [(b"host", origin.authority.encode()), (b"content-length", b"%d" % len(body)), *headers]
    if key is not None:
        fields.append((b"authorization", f"Bearer {key}".encode("latin-1")))
    head = encode_head(f"{method} {origin.prefix}{path} HTTP/1.1".encode("latin-1"), fields)
    connections = ConnectionPool(_CONNECT_TIMEOUT_S, timeout_s, authorities)
    async with asyncio.timeout(timeout_s):
        connection = await connections.connect(origin)
        try:
            connection.send(head, body)
            await connection.receive_head()
            parts = bytearray()
            while (part := await connection.read()) and len(parts) <= most_bytes:
                parts += part
            return HttpResponse(connection.status, connection.headers, bytes(parts))
        finally:
            connection.close()
