"""The salt of engines' prefix caches: nobody learns from the time to a first token what other tenants have asked."""

import hmac
from base64 import urlsafe_b64encode
from collections.abc import Iterable
from hashlib import sha256

import msgspec
from packaging.version import InvalidVersion, Version

from policies import PoolFacts
from serve.config.access import AccessConfig
from serve.proxy.routed_request import RoutedRequest
from serve.request.completion import NONE
from serve.request.patch import BodyPatch

_FIELD = "cache_salt"
_PURPOSE = b"specgate cache salt"
# From here on vLLM has no other engine than the one that knows salts, and SGLang puts them into its keys.
_KNOW = {"vllm": Version("0.11"), "sglang": Version("0.5.3")}
_KNOWN_TENANTS = 4096
_text = msgspec.json.Decoder(str)


class CacheSalts:
    """The salts of one configuration's tenants.

    They are no secret: whoever reaches an engine past the gateway has its key. A client can't have the salt of another
    tenant all the same, since what it gives is hashed with its own tenant's. Off if tenants are to share caches.
    """

    def __init__(self, config: AccessConfig) -> None:
        self.is_on = config.mode == "required" and config.cache_salt == "tenant"
        self._pools: frozenset[tuple[str, str]] = frozenset()
        self._tenants: dict[str, bytes] = {}

    def adopt(self, facts: Iterable[PoolFacts]) -> None:
        """Takes what is known of the pools' engines now."""
        if self.is_on:
            self._pools = frozenset((each.model, each.pool) for each in facts if knows_salts(each))

    def of(self, request: RoutedRequest, pool: str) -> str:
        """Returns the salt of a request in a pool; empty without one."""
        if (request.decision.model, pool) not in self._pools:
            return ""
        tenant = self._tenant(request.asker.tenant)
        own = _own_salt(request)
        return _encoded(hmac.digest(tenant, own.encode("utf-8", "surrogatepass"), sha256) if own else tenant)

    def _tenant(self, name: str) -> bytes:
        salt = self._tenants.get(name)
        if salt is None:
            if len(self._tenants) >= _KNOWN_TENANTS:
                self._tenants.clear()
            salt = self._tenants[name] = hmac.digest(_PURPOSE, name.encode(), sha256)
        return salt


def add_salt(patch: BodyPatch, request: RoutedRequest, salt: str) -> None:
    """Puts a salt into a body, in the place of the client's."""
    value = b'"%b"' % salt.encode()
    if request.parsed.cache_salt is NONE:
        patch.add(_FIELD, value)
    else:
        patch.set(_FIELD, value)


def knows_salts(facts: PoolFacts) -> bool:
    """Returns True if a pool's engines take a salt; others refuse it, or ignore it."""
    if facts.engine == "sim":
        return True
    since = _KNOW.get(facts.engine or "")
    if since is None:
        return False
    if facts.engine_version is None:
        return facts.kind == "vllm"  # one of ours, which has not reported yet
    try:
        return Version(Version(facts.engine_version).public) >= since
    except InvalidVersion:
        return False


def _own_salt(request: RoutedRequest) -> str:
    """Returns the client's own salt; empty for none, and for what is no text."""
    try:
        return _text.decode(request.parsed.cache_salt)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return ""


def _encoded(salt: bytes) -> str:
    return urlsafe_b64encode(salt).decode().rstrip("=")
