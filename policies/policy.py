"""The compiled policy: for each model the options to serve a request, in order, and the rules against them."""

import hashlib
import json
from collections.abc import Iterable, Mapping
from dataclasses import dataclass, field
from datetime import date
from typing import Any, NamedTuple

from policies.advisory import Advisory
from policies.canary import Split
from policies.decision import Cell, Decision
from policies.facts import PoolFacts
from policies.settings import PolicySettings

MODES = ("speculative", "opt_out", "standard")  # of an option, in order of preference


@dataclass(frozen=True, slots=True)
class Lift:
    """A waiver or a proof: takes a rule's force away for the requests it covers."""

    masks: tuple[int, ...]
    effect: str
    note: str


@dataclass(frozen=True, slots=True)
class Rule:
    """One reason against one option, for the requests that match one of `masks`.

    Attributes:
        force: `forbid`; `suspect` (forbids what the guard can check, unless the policy is optimistic), `suspect_any`
            (forbids free text as well), `suspect_death` (optimism does not help); `warn`.
        by_operator: An override rather than an advisory: a caller's preference never outweighs it.
    """

    advisory: str
    masks: tuple[int, ...]
    force: str
    summary: str
    basis: str = "advisory"
    by_operator: bool = False
    lifts: tuple[Lift, ...] = ()


@dataclass(frozen=True, slots=True)
class ServingOption:
    """One option to serve a request: a pool and its mode.

    Attributes:
        mode: One of `MODES`.
        place: In the configuration's order; identical pools, alike in all but their name, share one.
    """

    pool: str
    mode: str
    place: int
    rules: tuple[Rule, ...]


@dataclass(frozen=True, slots=True)
class Pin:
    """The operator wants these requests on this pool and no other."""

    masks: tuple[int, ...]
    pool: str
    reason: str


class QuarantineReason(NamedTuple):
    """The reason why a cell is in quarantine.

    Attributes:
        why: One sentence, with the figures if there are any.
        basis: `measured n=...`, `operator`, or `echo`: copied identifiers came out changed.
    """

    why: str
    basis: str


@dataclass(frozen=True, slots=True)
class ModelPolicy:
    """A model's options in order of preference, its pins, and its canaries: pool -> share of the conversations."""

    options: tuple[ServingOption, ...]
    pins: tuple[Pin, ...]
    canaries: Mapping[str, float] = field(default_factory=dict)


@dataclass(frozen=True, slots=True, eq=False)
class Policy:
    """The input of `decide`. Immutable except for a memory of decisions already made.

    Attributes:
        digest: Names this policy: policies of equal digest decide alike, quarantine aside.
        quarantined: Cells that are out at the moment; not part of the digest, which names what operators wrote.
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
    quarantined: Mapping[Cell, QuarantineReason] = field(default_factory=dict)
    memory: "dict[tuple[str, int, bool | None], Split[Decision]]" = field(default_factory=dict, repr=False)

    @property
    def optimistic(self) -> bool:
        """True if a suspicion alone does not forbid: the operator wants it so, and the guard checks the answers."""
        return self.settings.optimistic and self.settings.guard

    @property
    def unreadable(self) -> tuple[str, ...]:
        """Unreadable advisories, each with its problem; a live change that has any should be refused."""
        return tuple(f"{advisory.id}: {advisory.problem}" for advisory in self.advisories if advisory.problem)

    def to_dict(self) -> dict[str, Any]:
        """Returns a summary for operators."""
        return {
            "digest": self.digest,
            "mode": self.settings.mode,
            "optimistic": self.optimistic,
            "advisories": len(self.advisories),
            "unreadable": list(self.unreadable),
            "models": {name: _model_summary(model) for name, model in self.models.items()},
            "quarantined": [{**cell._asdict(), "why": reason.why} for cell, reason in self.quarantined.items()],
        }


def digest_of(facts: Iterable[PoolFacts], advisories: Iterable[Advisory], settings: PolicySettings, today: date) -> str:
    """Returns a short name for everything that decides. Only the order of the pools matters. Overrides that have
    expired by `today` don't count.
    """
    overrides = sorted(repr(override) for override in settings.overrides if override.holds(today))
    material = [
        [pool.to_dict() for pool in facts],
        sorted(repr(advisory) for advisory in advisories),
        [settings.mode, settings.optimistic, settings.guard, settings.unqualified, overrides],
    ]
    return hashlib.sha256(json.dumps(material, sort_keys=True).encode()).hexdigest()[:16]


def _model_summary(model: ModelPolicy) -> list[dict[str, Any]]:
    return [
        {"pool": option.pool, "way": option.mode, "rules": sorted({rule.advisory for rule in option.rules})}
        for option in model.options
    ]
