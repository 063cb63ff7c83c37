"""The operator's settings of the policy: mode, optimism and overrides."""

from dataclasses import dataclass
from datetime import date
from typing import Any, ClassVar, Literal

from policies.classes import masks_of
from policies.errors import PolicyError
from policies.qualification import Unqualified

Mode = Literal["enforce", "advise"]
OverrideAction = Literal["pin", "forbid", "waive"]


@dataclass(frozen=True, slots=True)
class Override:
    """The operator's word on some requests. A field that is left out covers all models, pools or classes.

    A file's overrides are validated by pydantic as a field of `serve.config.gateway.PolicyConfig`.

    Attributes:
        action: `pin`: these requests use this pool and no other, where the advisories allow it. `forbid`: never this
            pool, or, with no pool named, never speculation. `waive`: ignore one advisory until `expires`.
        reason: Shown in explanations.
        classes: Request classes as in advisories, `name+name`.
        expires: The first day on which it no longer holds; a waiver needs one.

    Raises:
        PolicyError: The fields contradict each other, or a class is not in the vocabulary.
    """

    __pydantic_config__: ClassVar[dict[str, Any]] = {"extra": "forbid"}

    action: OverrideAction
    reason: str
    model: str | None = None
    pool: str | None = None
    advisory: str | None = None
    classes: tuple[str, ...] = ()
    expires: date | None = None

    def __post_init__(self) -> None:
        if not self.reason.strip():
            raise PolicyError(f"override {self.action!r}: give a reason; the next operator will ask")
        if self.action == "waive" and not (self.advisory and self.expires):
            raise PolicyError("override 'waive' names one advisory and the date on which the waiver expires")
        if self.action != "waive" and self.advisory:
            raise PolicyError(f"override {self.action!r} takes no advisory; only 'waive' does")
        if self.action == "pin" and not self.pool:
            raise PolicyError("override 'pin' names a pool")
        for expression in self.classes:
            masks_of(expression)

    def holds(self, today: date) -> bool:
        """Returns True if it has not expired."""
        return self.expires is None or today < self.expires

    def speaks_of(self, model: str, pool: str | None = None) -> bool:
        """Returns True if it is about this model and, if one is given, this pool."""
        return self.model in (None, model) and (pool is None or self.pool in (None, pool))


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """The operator's settings of decisions.

    Attributes:
        mode: `advise`: a caller's `enable_speculative: true` outweighs an advisory. `enforce`: it does not.
        optimistic: Speculate where an advisory is only suspected. Takes effect with the guard only.
        guard: The guard checks every answer and reruns a broken one.
        unqualified: What a drafting engine that was not qualified is held to be: as good as its advisories say, a
            suspect, or unfit for what its drafts could break.
    """

    mode: Mode = "enforce"
    optimistic: bool = False
    guard: bool = False
    overrides: tuple[Override, ...] = ()
    unqualified: Unqualified = "trust"
