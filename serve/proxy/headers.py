"""The headers that pass in either direction, and a request's ids; specgate's own are `Attribution`'s."""

import random
import re
from collections.abc import Collection, Mapping, Sequence

from serve.http1.message import RawHeaders
from serve.request.features import PREFERENCE_HEADER

# What an engine has use for. Everything else of the client's stays here: credentials have more names than anyone can
# list, and engines obey headers (`x-data-parallel-rank`, `x-vllm-priority`) that are not the client's to set.
PASSED_TO_ENGINE = ("accept", "user-agent", "traceparent", "tracestate")
# What a client has use for of an engine's. Everything else stays here: browsers, frameworks and proxies obey headers
# that clear a site's data, lead elsewhere or read a proxy's files, new ones come up every year, and some servers
# tell in them whose account they run on.
_PASSED_TO_CLIENT = frozenset(
    {"content-type", "cache-control", "retry-after", "retry-after-ms", "x-should-retry", "openai-processing-ms",
     "openai-version"}
)  # fmt: skip
_FAMILIES_TO_CLIENT = ("x-ratelimit-", "anthropic-ratelimit-", "x-sim-")
_JSON = "application/json"
_REQUEST_ID = re.compile(r"[A-Za-z0-9._:-]{1,128}")


def request_headers(headers: Collection[tuple[bytes, bytes]]) -> dict[str, str]:
    """Returns the client's headers, whose names are in lower case, by ASGI.

    Of several with one name the last counts, but for `PREFERENCE_HEADER`: these become one list, in which a single
    `false` is a guarantee.
    """
    found = {name.decode("latin-1"): value.decode("latin-1") for name, value in headers}
    if len(found) < len(headers) and PREFERENCE_HEADER in found:
        name_of_it = PREFERENCE_HEADER.encode()
        found[PREFERENCE_HEADER] = ",".join([value.decode("latin-1") for name, value in headers if name == name_of_it])
    return found


def request_id_of(headers: Mapping[str, str]) -> str:
    """Returns the client's `x-request-id` if it is short and plain, else a fresh one.

    An id stands in logs and in the response, and engines have read addresses and injected lines from it.
    """
    given = headers.get("x-request-id")
    if given is not None and _REQUEST_ID.fullmatch(given):
        return given
    return _fresh_id()


def engine_id_of(request_id: str, headers: Mapping[str, str]) -> str:
    """Returns the id under which engines get a request: never the client's.

    Two requests of one id are one to an engine: vLLM mixed up their answers (CVE-2026-105755, before 0.30), and older
    releases broke.
    """
    return _fresh_id() if request_id == headers.get("x-request-id") else request_id


def _fresh_id() -> str:
    return random.getrandbits(128).to_bytes(16).hex()


def forwarded_headers(headers: Mapping[str, str], key: str | None, extra: Sequence[str] = ()) -> dict[str, str]:
    """Returns the headers for the engine: those of a short list, and what we say ourselves.

    `extra` are further names that may pass, in lower case.
    """
    forwarded = {name: headers[name] for name in (*PASSED_TO_ENGINE, *extra) if name in headers}
    if "connection" in headers:  # names there are for this connection alone
        for name in headers["connection"].split(","):
            forwarded.pop(name.strip().lower(), None)
    forwarded["content-type"] = _JSON  # without the client's parameters
    forwarded["accept-encoding"] = "identity"  # the guard reads what the engine says
    if key is not None:
        forwarded["authorization"] = f"Bearer {key}"
    return forwarded


def response_headers(headers: Mapping[str, str]) -> RawHeaders:
    """Returns those of the engine's response headers, given by lower-case name, that pass: the ones of a short list."""
    return [
        (name.encode("latin-1"), value.encode("latin-1"))
        for name, value in headers.items()
        if name in _PASSED_TO_CLIENT or name.startswith(_FAMILIES_TO_CLIENT)
    ]
