"""Tokens of an identity provider: JWTs of people, verified once and then known by the hash of the whole token."""

import json
import re
import ssl
import time
from collections.abc import Callable, Mapping
from hashlib import sha256
from http.client import HTTPException
from pathlib import Path
from typing import Any
from urllib.request import HTTPRedirectHandler, HTTPSHandler, build_opener

import jwt
from pydantic import TypeAdapter

from serve.access.key_text import digest
from serve.access.principal import EVERY_MODEL, NOBODY, Principal, Tenant
from serve.config.access import OidcConfig, TenantName
from serve.config.regular_file import read_regular
from serve.errors import ConfigError, InvalidApiKeyError, SharedStateError

_MAX_TOKEN_BYTES = 16 * 1024
_MAX_KNOWN = 10_000  # the oldest are forgotten, and verified again
_LEEWAY_S = 10.0  # for clocks that differ
_FETCH_S = 10.0
_MAX_DOCUMENT_BYTES = 1024 * 1024
_DISCOVERY_PATH = "/.well-known/openid-configuration"
_RETRY_AFTER_S = 2.0
_PLAIN = re.compile(r"[A-Za-z0-9._@:|-]{1,128}")
_TENANT = TypeAdapter[str](TenantName)
_REFUSED = "This token is not valid here: it is not the provider's, not for this gateway, or it has expired."


class _NoRedirects(HTTPRedirectHandler):
    """Follows nothing: who could lead us elsewhere, without TLS for instance, would choose the keys."""

    def redirect_request(self, *_: Any) -> None:
        return None


class TokenVerifier:
    """Turns tokens into principals.

    Attributes:
        lacks_key: True since a token named a key that is not among the provider's; it may have a new one.
    """

    def __init__(
        self, config: OidcConfig, tenant_of: Callable[[str], Tenant], clock: Callable[[], float] = time.time
    ) -> None:
        self.lacks_key = False
        self._config = config
        self._tenant_of = tenant_of
        self._clock = clock
        self._keys: Mapping[str, jwt.PyJWK] | None = None
        self._known: dict[bytes, tuple[Principal, float]] = {}  # by the token's hash: who it is, and until when

    @property
    def knows_keys(self) -> bool:
        return self._keys is not None

    def adopt(self, keys: Mapping[str, jwt.PyJWK]) -> None:
        """Takes over the provider's keys by id; tokens are verified again, since one may have been withdrawn."""
        self.lacks_key = False
        self._keys = keys
        self._known.clear()

    def __call__(self, token: str) -> Principal:
        """Returns the principal of a token.

        Raises:
            InvalidApiKeyError: It is not valid.
            SharedStateError: The provider's keys are not known yet.
        """
        hashed = digest(token)
        principal, ends_s = self._known.get(hashed, (NOBODY, 0.0))
        if self._clock() < ends_s and principal.tenant == self._tenant_of(principal.tenant.name):
            return principal
        try:
            claims = self._verified(token)
            principal, ends_s = self._principal(claims), float(claims["exp"])
        except (jwt.PyJWTError, ValueError, OverflowError, RecursionError):
            raise InvalidApiKeyError(_REFUSED) from None  # the cause repeats parts of the token
        while len(self._known) >= _MAX_KNOWN:
            del self._known[next(iter(self._known))]
        self._known[hashed] = principal, ends_s
        return principal

    def _verified(self, token: str) -> Mapping[str, Any]:
        if self._keys is None:
            message = "The keys of the identity provider are not known yet; try again shortly."
            raise SharedStateError(message, retry_after_s=_RETRY_AFTER_S)
        if len(token) > _MAX_TOKEN_BYTES:
            raise InvalidApiKeyError(_REFUSED)
        config = self._config
        claims: Mapping[str, Any] = jwt.decode(
            token,
            self._key(jwt.get_unverified_header(token).get("kid")),
            algorithms=config.algorithms,
            audience=config.audience,
            issuer=config.issuer,
            leeway=_LEEWAY_S,
            options={"require": ["exp", "iss", "aud", "sub", config.tenant_claim]},
        )
        return claims

    def _key(self, key_id: str | None) -> jwt.PyJWK:
        keys = self._keys or {}
        if key_id is None and len(keys) == 1:
            return next(iter(keys.values()))
        key = keys.get(key_id or "")
        if key is None:
            self.lacks_key = True
            raise InvalidApiKeyError(_REFUSED)
        return key

    def _principal(self, claims: Mapping[str, Any]) -> Principal:
        config = self._config
        tenant = _TENANT.validate_python(claims[config.tenant_claim], strict=True)
        scopes = frozenset[str](config.scopes)
        if config.scopes_claim is not None:
            scopes &= _names(claims.get(config.scopes_claim))
        models = EVERY_MODEL if "*" in config.models else config.models
        expires_s = int(claims["exp"])  # which may be written as a text
        return Principal(_person(claims["sub"]), self._tenant_of(tenant), scopes, models, expires_s=expires_s)


def read_provider_keys(path: Path) -> Mapping[str, jwt.PyJWK]:
    """Returns the keys in a file of JSON Web Keys, by id.

    Raises:
        ConfigError: The file can't be read, or holds no key.
    """
    try:
        document = json.loads(read_regular(path, _MAX_DOCUMENT_BYTES).decode())
    except OSError as error:
        raise ConfigError(f"the keys of the identity provider in {path} can't be read: {error.strerror}") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"the keys of the identity provider in {path} are not JSON") from error
    return _keys_in(document, str(path))


def fetch_provider_keys(config: OidcConfig, within_s: float = _FETCH_S) -> Mapping[str, jwt.PyJWK]:
    """Returns the keys that a provider publishes, by id. Blocks for `within_s` at most, once an address of it answers.

    Raises:
        ConfigError: They can't be fetched or read.
    """
    ends_s = time.monotonic() + within_s
    url = config.jwks_url or _keys_url(config.issuer, ends_s)
    return _keys_in(_fetched(url, ends_s), url)


def _keys_url(issuer: str, ends_s: float) -> str:
    """Returns where a provider's discovery document says that its keys are."""
    url = f"{issuer.rstrip('/')}{_DISCOVERY_PATH}"
    document = _fetched(url, ends_s)
    found = document.get("jwks_uri") if isinstance(document, dict) else None
    if not isinstance(found, str) or not found.startswith("https://"):
        raise ConfigError(f"{url} names no jwks_uri with https://; set access.oidc.jwks_url or jwks_file")
    if (named := document.get("issuer")) != issuer:
        raise ConfigError(f"{url} is about the issuer {named!r}, and access.oidc.issuer is {issuer!r}")
    return found


def _fetched(url: str, ends_s: float) -> Any:
    context = ssl.create_default_context()
    context.sslsocket_class = _socket_until(ends_s)
    try:
        with build_opener(_NoRedirects, HTTPSHandler(context=context)).open(url, timeout=_left_s(ends_s)) as response:
            return json.loads(response.read(_MAX_DOCUMENT_BYTES))
    except (HTTPException, ValueError, RecursionError, OSError) as error:
        raise ConfigError(f"the keys of the identity provider can't be fetched from {url}: {error}") from error


def _socket_until(ends_s: float) -> type[ssl.SSLSocket]:
    """Returns sockets that read until a time. Their timeout alone would begin again with each byte that drips in."""

    class Socket(ssl.SSLSocket):
        def recv_into(self, *args: Any, **kwargs: Any) -> int:
            self.settimeout(_left_s(ends_s))
            return super().recv_into(*args, **kwargs)

    return Socket


def _left_s(ends_s: float) -> float:
    """Returns the seconds until a time of the monotonic clock.

    Raises:
        TimeoutError: It is over.
    """
    left_s = ends_s - time.monotonic()
    if left_s <= 0:
        raise TimeoutError("it took too long")
    return left_s


def _keys_in(document: Any, source: str) -> Mapping[str, jwt.PyJWK]:
    try:
        keys = jwt.PyJWKSet.from_dict(document).keys
    except (jwt.PyJWTError, AttributeError, TypeError, ValueError) as error:
        raise ConfigError(f"{source} holds no JSON Web Keys: {error}") from error
    return {key.key_id or "": key for key in keys if key.public_key_use in (None, "sig")}


def _names(claim: Any) -> frozenset[str]:
    """Returns the names in a claim, a list or a text with blanks between them."""
    if isinstance(claim, str):
        return frozenset(claim.split())
    return frozenset(name for name in claim if isinstance(name, str)) if isinstance(claim, list) else frozenset()


def _person(subject: str) -> str:
    """Returns an id for logs and books; a subject that is not short and plain is replaced by its hash."""
    return f"oidc:{subject if _PLAIN.fullmatch(subject) else sha256(subject.encode()).hexdigest()[:32]}"
