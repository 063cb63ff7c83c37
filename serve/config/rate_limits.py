"""Limits of tenants, keys and models, and how requests are measured against them.

Stdlib dataclasses, so that the pure core of `serve.limits` can use them; as fields of a pydantic model they are
validated.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, ClassVar, Literal

from annotated_types import Ge, Gt

Number = Annotated[int, Ge(1)]
Weight = Annotated[float, Ge(0)]


@dataclass(frozen=True, kw_only=True, slots=True)
class Limits:
    """The limits of one scope: a tenant, a key, or a model of a tenant. None: no limit.

    Attributes:
        requests_per_minute: Requests that may begin.
        tokens_per_minute: Weighted tokens; see `TokenWeights`.
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


@dataclass(frozen=True, kw_only=True, slots=True)
class TokenWeights:
    """What one token counts in limits; usage is reported in plain tokens.

    Attributes:
        input: A token of the prompt that the engine computed.
        cached: A token of the prompt that the engine had in its prefix cache.
        output: A token that the engine wrote.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    input: Weight = 1.0
    cached: Weight = 0.1
    output: Weight = 2.0


@dataclass(frozen=True, kw_only=True)
class RateLimitsConfig:
    """Limits and the accounting of usage; see docs/explanation/limits.md.

    Attributes:
        enabled: Measure every answer and enforce limits. By default where `access.mode` is `required`.
        default: Limits of each tenant that has none of its own; without access control, of all clients together.
        weights: What a token counts.
        estimate: The output that is reserved for a request: `strict`: all that it may have. `expected`: three quarters
            of answers like it are no longer; what was not reserved is a debt.
        burst_s: Seconds of a rate that may be spent at once.
        output_caps: The most tokens that a model writes where a request names no limit, by the model's own name.
        output_cap: The same for models that are not in `output_caps`.
        tokens_per_image: Reserved for each image.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    enabled: bool | None = None
    default: Limits = Limits()
    weights: TokenWeights = TokenWeights()
    estimate: Literal["strict", "expected"] = "expected"
    burst_s: Annotated[float, Gt(0)] = 30.0
    output_caps: Mapping[str, Number] = field(default_factory=dict)
    output_cap: Number = 8192
    tokens_per_image: Number = 1000
