"""The configuration of who may use the gateway, and gateways that anybody can use.

It holds no secret: only paths, and hashes are in the files there.
"""

from collections.abc import Mapping
from ipaddress import ip_address
from typing import Annotated, Any, Literal, Self, get_args

from pydantic import Field, model_validator

from serve.config.pool import Seconds, _Strict

RightName = Literal["infer", "explain", "metrics", "observe", "content", "operate", "keys:own", "keys"]
RIGHTS: frozenset[str] = frozenset(get_args(RightName))
RequestPriority = Literal["interactive", "standard", "batch"]
PRIORITIES: tuple[RequestPriority, ...] = get_args(RequestPriority)  # from the first served to the last

ReservedClass = Literal["interactive", "standard"]  # those for which slots can be kept: not the last
RESERVED_CLASSES: tuple[ReservedClass, ...] = get_args(ReservedClass)

AccessMode = Literal["off", "required"]

TenantName = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._-]*$", max_length=64)]
# `*` alone is a wildcard, so that whether one pattern holds another is decidable.
ModelPattern = Annotated[str, Field(pattern=r"^[A-Za-z0-9._/:*-]+$", max_length=128)]
# Asymmetric ones only: with a shared secret, whoever can check a token can make one.
Algorithm = Literal["RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA"]

_RAYS_DEFAULT = "0.0.0.0"  # of a Serve config that names no host
OPEN_GATEWAY = (
    "anybody who reaches {host} may use every model: set access.mode to `required` (docs/how-to/manage-keys.md), or "
    "access.acknowledge_open to true if only trusted machines reach it"
)
_NO_TLS = (
    "Ray Serve's HAProxy speaks plain HTTP only, and with {options} it would never become ready: put TLS in front of "
    "it, with a sample of deploy/edge (docs/how-to/put-tls-in-front.md)"
)


class OidcConfig(_Strict):
    """Tokens of an identity provider, for people.

    Attributes:
        issuer: The provider, exactly as in the tokens' `iss`. Its discovery document names its keys, unless `jwks_file`
            or `jwks_url` does.
        audience: The tokens' `aud` for this gateway.
        algorithms: Signatures that are accepted.
        jwks_file: File with the provider's public keys; read again when it changes.
        jwks_url: Where the provider publishes them; fetched at most every few minutes.
        tenant_claim: The claim that names the tenant. Tokens without it are refused.
        scopes_claim: The claim that lists scopes, as a list or separated by blanks. If not given, every token has
            `scopes`.
        scopes: Scopes of every token; with `scopes_claim`, the most that it can grant.
        models: Models that such tokens may use; `*` stands for any characters.
    """

    issuer: Annotated[str, Field(min_length=1)]
    audience: Annotated[str, Field(min_length=1)]
    algorithms: Annotated[tuple[Algorithm, ...], Field(min_length=1)] = ("RS256", "ES256")
    jwks_file: str | None = None
    jwks_url: Annotated[str, Field(pattern=r"^https://")] | None = None
    tenant_claim: str = "tenant"
    scopes_claim: str | None = None
    scopes: tuple[RightName, ...] = ("infer",)
    models: tuple[ModelPattern, ...] = ("*",)

    @model_validator(mode="after")
    def _has_one_source_of_keys(self) -> Self:
        if self.jwks_file is not None and self.jwks_url is not None:
            raise ValueError("the provider's public keys come from jwks_file or jwks_url: set one of them, or none")
        if self.jwks_file is None and self.jwks_url is None and not self.issuer.startswith("https://"):
            raise ValueError("an issuer without https:// has no discovery document: set jwks_file or jwks_url")
        return self


class AccessConfig(_Strict):
    """The section `access`: who may use the gateway.

    Attributes:
        mode: `required`: every request needs a key or a token. `off`: whoever reaches the port may do everything.
        acknowledge_open: The gateway is meant to be open to everyone who reaches it. Without this, `deploy` and `up`
            refuse a configuration without access control.
        file: YAML file of tenants and hashes of keys, read again when it changes; every gateway replica must see it.
        state_dir: Folder of the store of keys and tenants, on a local disk of the head node (not NFS).
        oidc: Tokens of an identity provider.
        cache_salt: `tenant`: engines cache prompts for each tenant apart, so that response times reveal nothing. `off`:
            tenants share the cache, which is faster with common system prompts.
        stale_max_s: How long a gateway replica trusts the keys it knows while it can't reach the store.
    """

    mode: AccessMode = "off"
    acknowledge_open: bool = False
    file: str | None = None
    state_dir: str | None = None
    oidc: OidcConfig | None = None
    cache_salt: Literal["tenant", "off"] = "tenant"
    stale_max_s: Seconds = 24 * 3600

    @model_validator(mode="after")
    def _somebody_can_enter(self) -> Self:
        if self.mode == "required" and not (self.file or self.state_dir or self.oidc):
            raise ValueError("access is required, but there is no source of keys: set file, state_dir or oidc")
        return self


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
