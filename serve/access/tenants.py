"""Tenants: the teams that share a gateway."""

from collections.abc import Mapping
from dataclasses import dataclass, field

from serve.config.access import RequestPriority
from serve.config.rate_limits import Limits

DEFAULT_TENANT = "default"
NO_LIMITS = Limits()


@dataclass(frozen=True, slots=True)
class Tenant:
    """A team: whoever shares its limits and its weight.

    Attributes:
        weight: Its share where tenants compete, relative to the others'.
        model_limits: Further ones, by the model's own name.
        priority_ceiling: The first priority that its requests can have.
    """

    name: str
    weight: float = 1.0
    limits: Limits = NO_LIMITS
    model_limits: Mapping[str, Limits] = field(default_factory=dict)
    priority_ceiling: RequestPriority = "interactive"
