"""The compiled policy: for each model its ways to serve a request, in order, and the rules that bar them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from policies.advisory import Advisory
from policies.decision import Decision
from policies.facts import PoolFacts
from policies.settings import PolicySettings
from policies.turns import Turns


@dataclass(frozen=True, slots=True)
class Lift:
    """What takes a rule's force away for the requests it covers: a waiver or a proof."""

    masks: tuple[int, ...]
    effect: str
    note: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason against one way to serve the requests that match one of `masks`.

    Attributes:
        force: `forbid`; `suspect` (forbids too, unless the policy is optimistic); `warn`.
        by_operator: An override rather than an advisory: a caller's wish never outweighs it.
    """

    advisory: str
    masks: tuple[int, ...]
    force: str
    summary: str
    basis: str = "advisory"
    by_operator: bool = False
    lifts: tuple[Lift, ...] = ()


@dataclass(frozen=True, slots=True)
class Option:
    """One way to serve a request: a pool, with or without speculation."""

    pool: str
    way: str  # speculative, opt_out or standard
    place: int  # in the configuration's order; twins, pools alike in all but their name, share one
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """The operator wants these requests on this pool and no other."""

    masks: tuple[int, ...]
    pool: str
    reason: str


class Cell(NamedTuple):
    """What a clean-rate is kept of and what quarantine takes out: one pool for one class of requests.

    Attributes:
        speculative: With speculation or without: each is a configuration of its own and can be broken by itself.
        request_class: As `policies.classes.class_of` names it.
    """

    model: str
    pool: str
    speculative: bool
    request_class: str

    def __str__(self) -> str:
        how = "with" if self.speculative else "without"
        return f"{self.model}/{self.pool} {how} speculation, {self.request_class}"


class Finding(NamedTuple):
    """Why a cell is out.

    Attributes:
        why: One sentence, with the figures if there are any.
        basis: `measured n=...` or `operator`.
    """

    why: str
    basis: str


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """A model's options in order of preference, its pins, and its canaries: pool -> share of the conversations."""

    options: tuple[Option, ...]
    pins: tuple[Pin, ...]
    canaries: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """What `decide` works from. Immutable but for a memory of decisions already made.

    Attributes:
        models: By the configuration's own model names.
        digest: Names this policy: equal digests decide alike, but for what is in quarantine.
        quarantined: Cells that are out at present; not part of the digest, which names what operators wrote.
        successor: The policy from `until_s` on, when the next override expires.
        until_s: Unix time of that moment.
    """

    facts: tuple[PoolFacts, ...]
    advisories: tuple[Advisory, ...]
    settings: PolicySettings
    today: date
    models: dict[str, ModelPolicy]
    digest: str
    successor: "Policy | None" = None
    until_s: float = 0.0
    quarantined: Mapping[Cell, Finding] = field(default_factory=dict)
    memory: "dict[tuple[str, int, bool | None], Turns[Decision]]" = field(default_factory=dict, repr=False)

    @property
    def optimistic(self) -> bool:
        """Whether a suspicion alone no longer forbids: the operator wants it so and the guard stands behind."""
        return self.settings.optimistic and self.settings.guard

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Advisories that could not be read, with the reason; a live change that has any should be refused."""
        return tuple(f"{each.id}: {each.problem}" for each in self.advisories if each.problem)

    def to_dict(self) -> dict[str, Any]:
        """A summary for operators."""
        return {
            "digest": self.digest,
            "mode": self.settings.mode,
            "optimistic": self.optimistic,
            "advisories": len(self.advisories),
            "unreadable": list(self.unreadable),
            "models": {name: _model_summary(model) for name, model in self.models.items()},
            "quarantined": [{**cell._asdict(), "why": finding.why} for cell, finding in self.quarantined.items()],
        }


def digest_of(facts: Iterable[PoolFacts], advisories: Iterable[Advisory], settings: PolicySettings, today: date) -> str:
    """A short name for everything that decides, whatever order it came in, save for the order of the pools."""
    overrides = sorted(repr(each) for each in settings.overrides if each.holds(today))
    material = [
        [each.to_dict() for each in facts],
        sorted(repr(each) for each in advisories),
        [settings.mode, settings.optimistic, settings.guard, overrides],
    ]
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:16]


def _model_summary(model: ModelPolicy) -> list[dict[str, Any]]:
    return [
        {"pool": option.pool, "way": option.way, "rules": sorted({rule.advisory for rule in option.rules})}
        for option in model.options
    ]
