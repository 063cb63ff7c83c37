"""The compiled policy: for each model the options to serve a request, in order, and the rules against them.

What an advisory's rule does to a request is decided here: by its effect and status when it is compiled (`_rule`), and
by the request's classes when it is applied (`_reason`).
"""

import hashlib
import json
from collections.abc import Callable, Iterable, Mapping
from dataclasses import dataclass, field, replace
from datetime import UTC, date, datetime, time
from functools import reduce
from operator import or_
from typing import Any, ClassVar, Literal, NamedTuple

from policies.advisory import Advisory
from policies.classes import CHECKED, NUMBERS, covers, masks_of, masks_of_all, matches
from policies.decision import Candidate, Cell, Reason, Split, Suspended
from policies.errors import PolicyError
from policies.facts import PoolFacts
from policies.freshness import NEWER_ENGINE, NOT_QUALIFIED, newer_engine, not_qualified
from policies.qualification import Qualification, Unqualified


class Suspicion(NamedTuple):
    """The effect of a suspicion on free text, and on answers that an optimist's guard can check."""

    of_free_text: str
    under_guard: str


MODES = ("speculative", "opt_out", "standard")  # of an option, in order of preference
_ANY = masks_of_all(["any"])
FAILED = "qualification-failed"
"""The reason against what an engine drafted wrongly when it was qualified."""
_FORCE = {
    ("forbid", "confirmed"): "forbid",
    ("forbid", "suspected"): "suspect",
    ("warn", "confirmed"): "warn",
    ("warn", "suspected"): "warn",
}
# Free text is neither right nor wrong: a mere suspicion does not cost the caller speed, unless no text comes out.
_SUSPICIONS = {
    "suspect": Suspicion("warn", "optimistic"),
    "suspect_any": Suspicion("forbid", "optimistic"),
    "suspect_death": Suspicion("warn", "forbid"),
}

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
    memory: dict[tuple[str, int, bool | None], Split] = field(default_factory=dict, repr=False)

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


def compile_policy(
    facts: Iterable[PoolFacts], advisories: Iterable[Advisory], settings: PolicySettings, today: date | None = None
) -> Policy:
    """Works out once what each request then only looks up. The order of the facts is the preference among pools that
    are otherwise equal. Overrides expire by `today`, the current day (UTC) if not given.

    Raises:
        PolicyError: An override names a model, pool or advisory that does not exist.
    """
    pools = tuple(facts)
    by_id = tuple(sorted(_with_built_in(advisories, settings), key=lambda advisory: advisory.id))
    day = today or datetime.now(UTC).date()
    _check_names(pools, by_id, settings)
    overrides = tuple(override for override in settings.overrides if override.holds(day))
    names = dict.fromkeys(pool.model for pool in pools)
    expiries = [
        *(override.expires for override in overrides if override.expires),
        *(each.qualification.expires for each in pools if each.qualification and each.qualification.holds(day)),
    ]
    successor = compile_policy(pools, by_id, settings, min(expiries)) if expiries else None
    return Policy(
        facts=pools,
        advisories=by_id,
        settings=settings,
        today=day,
        models={name: _model(name, pools, by_id, overrides, day) for name in names},
        digest=digest_of(pools, by_id, settings, day),
        successor=successor,
        until_s=datetime.combine(successor.today, time(), UTC).timestamp() if successor else 0.0,
    )


def _with_built_in(advisories: Iterable[Advisory], settings: PolicySettings) -> list[Advisory]:
    """Returns the advisories, and what is held against engines that they, or nobody, was checked against."""
    own = [advisory for advisory in advisories if advisory.id not in (NEWER_ENGINE, NOT_QUALIFIED)]
    suspicion = newer_engine(own)
    built_in = [] if suspicion is None else [suspicion]
    if settings.unqualified != "trust":
        built_in.append(not_qualified(settings.unqualified == "quarantine"))
    return [*own, *built_in]


def with_pools(policy: Policy, model: str, facts: Iterable[PoolFacts]) -> Policy:
    """Returns the policy as it would be today if the pools of one model were others.

    A hypothesis, to be compared with the policy in force: it keeps that policy's digest, and has no successor.
    Quarantine stays as it is.
    """
    own = tuple(facts)
    overrides = tuple(override for override in policy.settings.overrides if override.holds(policy.today))
    compiled = {**policy.models, model: _model(model, own, policy.advisories, overrides, policy.today)}
    others = tuple(pool for pool in policy.facts if pool.model != model)
    return replace(policy, facts=(*others, *own), models=compiled, successor=None, memory={})


def _model(
    name: str,
    pools: tuple[PoolFacts, ...],
    advisories: tuple[Advisory, ...],
    overrides: tuple[Override, ...],
    today: date,
) -> ModelPolicy:
    own = [pool for pool in pools if pool.model == name]
    options = [
        ServingOption(facts.pool, mode, _place(facts, own), _rules(facts, mode, advisories, overrides, today))
        for mode in MODES
        for facts in own
        if mode in _modes(facts)
    ]
    pins = tuple(
        Pin(masks_of_all(override.classes) or _ANY, override.pool, override.reason)
        for override in overrides
        if override.action == "pin" and override.pool and override.speaks_of(name)
    )
    canaries = {pool.pool: pool.canary_share for pool in own if pool.canary_share}
    return ModelPolicy(tuple(options), pins, canaries)


def _place(facts: PoolFacts, own: list[PoolFacts]) -> int:
    return next(place for place, other in enumerate(own) if replace(other, pool=facts.pool) == facts)


def _modes(facts: PoolFacts) -> tuple[str, ...]:
    if not facts.speculative:
        return ("standard",)
    return ("speculative", "opt_out") if facts.opt_out else ("speculative",)


def _rules(
    facts: PoolFacts, mode: str, advisories: tuple[Advisory, ...], overrides: tuple[Override, ...], today: date
) -> tuple[Rule, ...]:
    qualification = facts.qualification if facts.qualification and facts.qualification.holds(today) else None
    relevant = [override for override in overrides if override.speaks_of(facts.model, facts.pool)]
    by_advisory = [
        _rule(advisory, facts, mode, relevant, qualification)
        for advisory in advisories
        if advisory.effects[mode] != "allow" and advisory.matches(facts)
    ]
    by_operator = [
        Rule("operator-forbid", masks_of_all(override.classes) or _ANY, "forbid", override.reason, "operator", True)
        for override in relevant
        if override.action == "forbid" and (override.pool or mode == "speculative")
    ]
    return (*by_advisory, *_failed(qualification, mode), *by_operator)


def _failed(qualification: Qualification | None, mode: str) -> tuple[Rule, ...]:
    """Returns what a pool must not draft, since it was seen to draft it wrongly."""
    if qualification is None or not qualification.failed or mode != "speculative":
        return ()
    basis = f"measured n={qualification.trials}"
    return (Rule(FAILED, masks_of_all(qualification.failed), "forbid", f"This engine was {qualification}", basis),)


def _rule(
    advisory: Advisory, facts: PoolFacts, mode: str, overrides: list[Override], qualification: Qualification | None
) -> Rule:
    force = _FORCE[advisory.effects[mode], advisory.status]
    lifts = [
        Lift(masks_of_all(override.classes) or _ANY, "waived", f"waived until {override.expires}: {override.reason}")
        for override in overrides
        if override.action == "waive" and override.advisory == advisory.id
    ]
    unknown = advisory.assumptions(facts)
    suspected = force == "suspect"
    if suspected and (advisory.kills or advisory.garbles):
        # Without the engine and its version nobody knows if the fault exists: too little to hold free text (ADR 0093).
        guessed = "engine" in unknown or "engine_version" in unknown
        if advisory.kills:
            force = "suspect_death" if guessed else "forbid"
        else:
            force = "suspect" if guessed else "suspect_any"
    if facts.proven and suspected:  # a proof outweighs a suspicion; a confirmed hazard takes a waiver
        lifts.append(Lift(masks_of_all(facts.proven), "proven", "proven right on this pool by the operator"))
    if qualification and qualification.passed and (suspected or advisory.id == NOT_QUALIFIED):
        lifts.append(Lift(masks_of_all(qualification.passed), "proven", str(qualification)))
    note = f" (assumed: {', '.join(unknown)} not known)" if unknown and not advisory.problem else ""
    return Rule(
        advisory.id, masks_of_all(advisory.unsafe), force, advisory.summary + note, advisory.basis, lifts=tuple(lifts)
    )


def _check_names(pools: tuple[PoolFacts, ...], advisories: tuple[Advisory, ...], settings: PolicySettings) -> None:
    ids = {advisory.id for advisory in advisories}
    names = {(pool.model, pool.pool) for pool in pools}
    if len(names) != len(pools):
        raise PolicyError("two pools of one model have the same name")
    for facts in pools:
        masks_of_all(facts.proven)
    _check_canaries(pools)
    for override in settings.overrides:
        if override.advisory is not None and override.advisory not in ids:
            raise PolicyError(f"override 'waive': no advisory {override.advisory!r}; see `specgate advisories list`")
        if not any(override.speaks_of(model, pool) for model, pool in names):
            of = f" of model {override.model!r}" if override.model else ""
            what = f"pool {override.pool!r}{of}" if override.pool else f"model {override.model!r}"
            raise PolicyError(f"override {override.action!r}: there is no {what}")


def _check_canaries(pools: tuple[PoolFacts, ...]) -> None:
    for model in {pool.model for pool in pools}:
        shares = [pool.canary_share for pool in pools if pool.model == model]
        if None not in shares:
            raise PolicyError(
                f"every pool of model {model!r} has a canary_share: one must serve the other conversations"
            )
        if sum(filter(None, shares)) >= 1:
            raise PolicyError(f"the canary_share of model {model!r} add up to 1 or more")


class RequestCase(NamedTuple):
    """All that decides for a class of requests."""

    policy: Policy
    model: str
    mask: int
    preference: bool | None

    @property
    def model_policy(self) -> ModelPolicy:
        """The model's part of the policy; empty if the model is unknown."""
        return self.policy.models.get(self.model, ModelPolicy((), ()))

    def reasons(self, option: ServingOption) -> set[Reason]:
        """Returns what the rules about an option say of such requests."""
        overruled = bool(self.preference) and self.policy.settings.mode == "advise" and option.mode == "speculative"
        return {
            _reason(rule, self.mask, self.policy.optimistic, overruled)
            for rule in option.rules
            if matches(rule.masks, self.mask)
        }


class Contender(NamedTuple):
    """An option, and what has become of it so far."""

    option: ServingOption
    candidate: Candidate
    allowed: bool = True


class Shortlist(NamedTuple):
    """What the stages so far have left.

    Attributes:
        contenders: By mode, as `MODES` has it, and in the configuration's order.
        suspended: Contenders that only a test keeps out.
    """

    contenders: tuple[Contender, ...]
    reasons: frozenset[Reason] = frozenset()
    suspended: tuple[Suspended, ...] = ()


def shortlisted(case: RequestCase, stages: Iterable[Callable[[RequestCase, Shortlist], Shortlist]]) -> Shortlist:
    """Returns what the stages leave of all options. The stages apply in their order."""
    shortlist = Shortlist(
        tuple(
            Contender(each, Candidate(each.pool, each.mode == "opt_out", each.mode == "speculative"))
            for each in case.model_policy.options
        )
    )
    for applied in stages:
        shortlist = applied(case, shortlist)
    return shortlist


def _reason(rule: Rule, mask: int, optimistic: bool, overruled: bool) -> Reason:
    for lift in rule.lifts:
        # Whoever proved prose right did not look at the numbers beside it.
        if covers(lift.masks, mask, _numbers(rule.masks, mask) if lift.effect == "proven" else 0):
            return Reason(rule.advisory, lift.effect, f"{rule.summary} ({lift.note})", rule.basis)
    effect = rule.force
    if effect in _SUSPICIONS:
        effect = _suspected(_SUSPICIONS[effect], rule.masks, mask, optimistic)
    if effect == "forbid" and overruled and not rule.by_operator:
        effect = "overruled"
    return Reason(rule.advisory, effect, rule.summary, rule.basis)


def _numbers(masks: Iterable[int], mask: int) -> int:
    """Returns the classes of numbers for which a rule's masks match a request."""
    return reduce(or_, (required & NUMBERS for required in masks if required & mask == required), 0)


def _suspected(suspicion: Suspicion, masks: Iterable[int], mask: int, optimistic: bool) -> str:
    if _numbers(masks, mask):
        return "forbid"  # a wrong number looks right, also to the guard
    if not mask & CHECKED:
        return suspicion.of_free_text
    return suspicion.under_guard if optimistic else "forbid"
