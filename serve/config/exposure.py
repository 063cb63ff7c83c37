"""A gateway's exposure to its clients: gateways that anybody can use, and TLS that nobody would speak."""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Any

from serve.config.access import AccessConfig

_RAYS_DEFAULT = "0.0.0.0"  # of a Serve config that names no host
OPEN_GATEWAY = (
    "anybody who reaches {host} may use every model: set access.mode to `required` (docs/how-to/manage-keys.md), or "
    "access.acknowledge_open to true if only trusted machines reach it"
)

_NO_TLS = (
    "Ray Serve's HAProxy speaks plain HTTP only, and with {options} it would never become ready: put TLS in front of "
    "it, with a sample of deploy/edge (docs/how-to/put-tls-in-front.md)"
)


def listening_host(document: Mapping[str, Any]) -> str | None:
    """Returns the address that a Serve config listens on; None for the gateway's part alone, which has none."""
    if "applications" not in document:
        return None
    return str((document.get("http_options") or {}).get("host", _RAYS_DEFAULT))


def unspoken_tls(document: Mapping[str, Any]) -> str | None:
    """Returns what is wrong with a Serve config that asks Ray Serve for TLS; None if it does not."""
    options = [
        f"http_options.{name}"
        for name, value in (document.get("http_options") or {}).items()
        if name.startswith("ssl_") and value
    ]
    return _NO_TLS.format(options=" and ".join(options)) if options else None


def open_gateway(access: AccessConfig, host: str | None) -> str | None:
    """Returns what is wrong with a gateway's openness; None if nothing is. A host of None is one that nobody knows."""
    if access.mode == "required" or access.acknowledge_open or host is None or is_loopback(host):
        return None
    return OPEN_GATEWAY.format(host=host)


def is_loopback(host: str) -> bool:
    """Returns True for an address that only this machine reaches."""
    try:
        return ip_address(host).is_loopback
    except ValueError:
        return host == "localhost"
