"""What goes over the wire: headers that pass, headers that don't, and the bytes of an SSE stream."""

from collections.abc import Iterable, Mapping

Headers = Iterable[tuple[bytes, bytes]]


RawHeaders = list[tuple[bytes, bytes]]


# RFC 9110 section 7.6.1, and what the client library computes itself.
_HOP_BY_HOP = frozenset(
    {"connection", "keep-alive", "proxy-authenticate", "proxy-authorization", "proxy-connection", "te", "trailer",
     "transfer-encoding", "upgrade", "host", "content-length", "expect", "accept-encoding"}
)  # fmt: skip


# The client's own secrets and whereabouts, our fields, and two headers by which a client could steer Ray Serve.
_PRIVATE = frozenset(
    {"authorization", "cookie", "forwarded", "via", "x-real-ip", "x-enable-speculative", "x-request-timeout-seconds",
     "x-request-disconnect-disabled", "x-api-key"}
)  # fmt: skip


_PRIVATE_PREFIXES = ("x-specgate-", "x-forwarded-")


_WITHHELD = _HOP_BY_HOP | _PRIVATE


_RESPONSE_DROPPED = _HOP_BY_HOP | {"server", "date", "set-cookie", "content-encoding", "x-request-id"}


def request_headers(headers: Headers) -> dict[str, str]:
    """The client's headers by lower-case name; the last of several with one name counts."""
    return {name.decode("latin-1").lower(): value.decode("latin-1") for name, value in headers}


def forwarded_headers(headers: Mapping[str, str], key: str | None) -> dict[str, str]:
    """What the engine gets to see: everything but hop-by-hop headers, secrets, addresses and our own fields.

    Args:
        headers: From `request_headers`.
        key: The engine's bearer token.
    """
    dropped = _WITHHELD
    if "connection" in headers:
        dropped |= {name.strip().lower() for name in headers["connection"].split(",")}
    kept = {
        name: value for name, value in headers.items() if name not in dropped and not name.startswith(_PRIVATE_PREFIXES)
    }
    kept["content-type"] = "application/json"  # whatever the client called it, it has been read as JSON
    if key is not None:
        kept["authorization"] = f"Bearer {key}"
    return kept


def answered_headers(headers: Mapping[str, str]) -> RawHeaders:
    """What the client gets of the engine's response headers."""
    return [
        (name.lower().encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name.lower() not in _RESPONSE_DROPPED and not name.lower().startswith("x-specgate-")
    ]
