"""Limits of tenants, keys and models, and how requests are measured against them.

Stdlib dataclasses, so that the pure core of `serve.limits` can use them; as fields of a pydantic model they are
validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import asdict, dataclass, field
from typing import Annotated, Any, ClassVar, Literal
from urllib.parse import SplitResult, urlsplit

from annotated_types import Ge, Gt

from serve.config.secret import Secret

Number = Annotated[int, Ge(1)]
Weight = Annotated[float, Ge(0)]
TOKENS_PER_IMAGE = 1000  # what most cost, whatever the size of their files
_SCHEMES = {"redis": "redis", "rediss": "rediss", "valkey": "redis", "valkeys": "rediss"}


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one scope: a tenant, a key, or a model of a tenant. None: no limit.

    Attributes:
        requests_per_minute: Requests that may begin.
        tokens_per_minute: Weighted tokens; see `rate_limits.weights`.
        concurrency: Requests under way at the same time.
        tokens_per_month: Weighted tokens of a calendar month in UTC.
        queued: Requests that may wait for a slot of one pool, at each gateway replica; it has no effect on a key.
        shadow: Count what the limits would refuse, and refuse nothing.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    requests_per_minute: Number | None = None
    tokens_per_minute: Number | None = None
    concurrency: Number | None = None
    tokens_per_month: Number | None = None
    queued: Number | None = None
    shadow: bool = False

    def stated(self) -> dict[str, Any]:
        """Returns the limits that are set, by name."""
        return {name: value for name, value in asdict(self).items() if value not in (None, False)}


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWeights:
    """The weights of tokens in limits; usage is reported in plain tokens.

    Attributes:
        input: A token of the prompt that the engine computed.
        cached: A token of the prompt that the engine had in its prefix cache.
        output: A token that the engine wrote.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    input: Weight = 1.0
    cached: Weight = 0.1
    output: Weight = 2.0


@dataclass(frozen=True, kw_only=True, slots=True)
class StoreConfig:
    """A Valkey or Redis server, which has the buckets of several clusters' limits.

    Attributes:
        url: `redis://HOST:PORT/DATABASE`, or `rediss://` with TLS; `valkey://` and `valkeys://` are the same. No user
            or password: Ray's dashboard shows it.
        clusters: How many share it. While it is away, each continues with at most an equal part of each limit.
        prefix: Prefix of all keys in the store. Clusters with the same one share their limits.
        user: Of the server's access list.
        password_env: Environment variable of the head node with the password.
        password_file: File on the head node with it; read again for each connection.
        ca_file: Certificates on the head node that sign the server's, if the system's do not.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    url: str
    clusters: Number = 2
    prefix: str = "specgate"
    user: str | None = None
    password_env: str | None = None
    password_file: str | None = None
    ca_file: str | None = None

    def __post_init__(self) -> None:
        """Checks the URL, and never repeats it: somebody may have put a password there.

        Raises:
            ValueError: It names no server, or more than that.
        """
        parts = _split(self.url)
        if parts.scheme not in _SCHEMES:
            raise ValueError(f"the url must begin with one of {', '.join(f'{each}://' for each in _SCHEMES)}")
        if parts.username or parts.password or "@" in parts.netloc:
            raise ValueError(
                "user and password do not belong into the url, which Ray's dashboard shows: set user, and password_env "
                "or password_file"
            )
        if not parts.hostname:
            raise ValueError("the url names no host")
        if parts.path.strip("/") and not parts.path.strip("/").isdigit():
            raise ValueError("the url's path is the number of a database, such as /0")
        if parts.query or parts.fragment:
            raise ValueError("the url has parameters; only host, port and database can be set there")
        if self.password is None and self.user:
            raise ValueError("a user needs password_env or password_file")

    @property
    def password(self) -> Secret | None:
        """The place of the password; None if the server wants none."""
        if not self.password_env and not self.password_file:
            return None
        return Secret("rate_limits.store.password", self.password_env, self.password_file)

    @property
    def address(self) -> str:
        """The URL as clients of Redis know it."""
        return _split(self.url)._replace(scheme=_SCHEMES[_split(self.url).scheme]).geturl()


def _split(url: str) -> SplitResult:
    try:
        parts = urlsplit(url)
        _ = parts.port
    except ValueError:
        raise ValueError("the url is none, or its port is no number") from None
    return parts


@dataclass(frozen=True, kw_only=True)
class RateLimitsConfig:
    """Limits and the accounting of usage; see docs/explanation/limits.md.

    Attributes:
        enabled: Count usage and enforce limits. By default where `access.mode` is `required`.
        default: Limits of each tenant without its own; without access control, of all clients together.
        weights: What a token counts.
        estimate: The output reserved for a request. `strict`: all that it may have. `expected`: what three quarters of
            similar answers do not exceed; the rest is a debt.
        burst_s: Seconds of a rate that may be spent at once.
        output_caps: Maximum tokens of one answer by model, reserved where a request sets no lower limit. With `strict`,
            set it to what engines really allow.
        output_cap: The same for models that are not in `output_caps`.
        tokens_per_image: Reserved for each image.
        store: Shares the limits among clusters, and what `routing: prefix` knows among gateways without Ray; None: they
            are this cluster's own.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    enabled: bool | None = None
    default: Limits = Limits()
    weights: TokenWeights = TokenWeights()
    estimate: Literal["strict", "expected"] = "expected"
    burst_s: Annotated[float, Gt(0)] = 30.0
    output_caps: Mapping[str, Number] = field(default_factory=dict)
    output_cap: Number = 8192
    tokens_per_image: Number = TOKENS_PER_IMAGE
    store: StoreConfig | None = None
