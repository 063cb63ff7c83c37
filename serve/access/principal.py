"""The principal of a request: on whose behalf it is made, of which tenant, and what it may do."""

from collections.abc import Callable, Mapping
from dataclasses import dataclass, field
from datetime import UTC, datetime
from fnmatch import fnmatchcase

from serve.config.access import PRIORITIES, RIGHTS, RequestPriority
from serve.config.rate_limits import Limits
from serve.errors import InsufficientScopeError, InvalidRequestError

EVERY_MODEL = ("*",)
PRIORITY_HEADER = "x-specgate-class"
MODELS_HEADER = "x-specgate-models"  # from the admin API to a gateway replica: the caller's `models`, with commas
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


def utc_text(time_s: float) -> str:
    """Returns a Unix time for people."""
    try:
        return datetime.fromtimestamp(time_s, UTC).isoformat(timespec="seconds")
    except (OverflowError, ValueError, OSError):  # an identity provider may say anything
        return "the end of time"


@dataclass(frozen=True, slots=True)
class Principal:
    """The caller, as a key or a token says.

    Attributes:
        key_id: The key's id, which is no secret; of a token, its issuer's name for the person.
        scopes: What it may do, of `serve.config.access.RIGHTS`.
        models: Patterns of models' own names, in which `*` stands for any characters.
        shared: Limits of the keys that handed it out, directly or not, by their ids: it spends of these too.
        priority_ceiling: The first priority that its requests can have.
        expires_s: End of its validity in Unix time; None for never.
    """

    key_id: str
    tenant: Tenant
    scopes: frozenset[str]
    models: tuple[str, ...] = EVERY_MODEL
    limits: Limits = NO_LIMITS
    priority_default: RequestPriority = "standard"
    priority_ceiling: RequestPriority = "interactive"
    expires_s: float | None = None
    shared: tuple[tuple[str, Limits], ...] = ()

    def require(self, scope: str) -> None:
        """Returns if the principal holds a scope.

        Raises:
            InsufficientScopeError: It does not.
        """
        if scope not in self.scopes:
            raise InsufficientScopeError(f"This key does not have the scope {scope!r}.")

    def priority(self, wanted: str) -> RequestPriority:
        """Returns the priority of a request that asks for one: that one, but none before the ceiling.

        Raises:
            InvalidRequestError: There is no such priority.
        """
        if wanted not in PRIORITIES:
            raise InvalidRequestError(
                f"{PRIORITY_HEADER} must be one of {', '.join(PRIORITIES)}.", param=PRIORITY_HEADER
            )
        return max(wanted, self.priority_ceiling, key=PRIORITIES.index)

    def may_use(self, model: str) -> bool:
        """Returns True if the principal may use a model, given its own name."""
        return self.models is EVERY_MODEL or any(fnmatchcase(model, pattern) for pattern in self.models)


# Everybody, where access is off: nothing that follows has to ask whether it is on.
ANONYMOUS = Principal("anonymous", Tenant(DEFAULT_TENANT), RIGHTS)
# Who has no key, on the routes that need none, and of a request that is refused: of no tenant.
NOBODY = Principal("", Tenant(""), frozenset(), ())

# Returns the principal of a request, given its headers by lower-case name, or raises `GatewayError`.
Authenticate = Callable[[Mapping[str, str]], Principal]


def everybody(_: Mapping[str, str]) -> Principal:
    """Returns the one principal of a gateway without access control."""
    return ANONYMOUS
