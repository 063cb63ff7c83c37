"""What the operator says about the policy: mode, optimism and overrides."""

from collections.abc import Mapping
from dataclasses import dataclass, field, fields
from datetime import date
from typing import Any

from policies.classes import masks_of
from policies.errors import PolicyError

MODES = ("enforce", "advise")
ACTIONS = ("pin", "forbid", "waive")


@dataclass(frozen=True, slots=True)
class Override:
    """The operator's word on some requests; what is left out stands for all.

    Attributes:
        action: `pin`: these requests use this pool and no other, where the advisories allow it. `forbid`: never this
            pool, or, with no pool named, never speculation. `waive`: disregard one advisory until `expires`.
        reason: Why; shown in explanations.
        classes: Request classes as in advisories, `name+name`.
        expires: ISO date, the first day on which it no longer holds; a waiver needs one.
    """

    action: str
    reason: str
    model: str | None = None
    pool: str | None = None
    advisory: str | None = None
    classes: tuple[str, ...] = ()
    expires: str | None = None

    def __post_init__(self) -> None:
        if self.action not in ACTIONS:
            raise PolicyError(f"override: unknown action {self.action!r}; known: {', '.join(ACTIONS)}")
        if not self.reason.strip():
            raise PolicyError(f"override {self.action!r}: say the reason; the next operator will ask")
        if self.action == "waive" and not (self.advisory and self.expires):
            raise PolicyError("override 'waive' names one advisory and the date on which the waiver expires")
        if self.action != "waive" and self.advisory:
            raise PolicyError(f"override {self.action!r} takes no advisory; only 'waive' does")
        if self.action == "pin" and not self.pool:
            raise PolicyError("override 'pin' names a pool")
        if self.expires is not None:
            _day(self.expires)
        for expression in self.classes:
            masks_of(expression)

    def holds(self, today: date) -> bool:
        """Whether it still counts."""
        return self.expires is None or today < _day(self.expires)

    def speaks_of(self, model: str, pool: str | None = None) -> bool:
        """Whether it is about this model and, if one is given, this pool."""
        return self.model in (None, model) and (pool is None or self.pool in (None, pool))


@dataclass(frozen=True, slots=True)
class PolicySettings:
    """How the operator wants decisions to be made.

    Attributes:
        mode: `advise`: a caller's `enable_speculative: true` outweighs an advisory; `enforce`: it does not.
        optimistic: Speculate where an advisory is only suspected. Takes effect with the guard only.
        guard: The guard checks every answer and reruns a broken one.
    """

    mode: str = "enforce"
    optimistic: bool = False
    guard: bool = False
    overrides: tuple[Override, ...] = field(default=())

    def __post_init__(self) -> None:
        if self.mode not in MODES:
            raise PolicyError(f"policy: unknown mode {self.mode!r}; known: {', '.join(MODES)}")

    @classmethod
    def from_mapping(cls, values: Mapping[str, Any]) -> "PolicySettings":
        """From plain values, as parsed from a file.

        Raises:
            PolicyError: A key is unknown or a value makes no sense.
        """
        known = {each.name for each in fields(cls)}
        if unknown := set(values) - known:
            raise PolicyError(f"policy: unknown settings {sorted(unknown)}; known: {sorted(known)}")
        overrides = tuple(_override(each) for each in values.get("overrides", ()))
        return cls(**{**values, "overrides": overrides})


def _override(values: Mapping[str, Any]) -> Override:
    known = {each.name for each in fields(Override)}
    if unknown := set(values) - known:
        raise PolicyError(f"override: unknown keys {sorted(unknown)}; known: {sorted(known)}")
    if missing := {"action", "reason"} - set(values):
        raise PolicyError(f"override: {sorted(missing)} missing")
    expires = values.get("expires")  # YAML reads an unquoted date as a date
    return Override(
        **{
            **values,
            "classes": tuple(values.get("classes") or ()),
            "expires": expires.isoformat() if isinstance(expires, date) else expires,
        }
    )


def _day(text: str) -> date:
    try:
        return date.fromisoformat(text)
    except ValueError as error:
        raise PolicyError(f"override: expires is an ISO date such as 2027-01-31, not {text!r}") from error
