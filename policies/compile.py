"""Compiles pool facts, advisories and the operator's settings into a policy."""

from collections.abc import Iterable
from dataclasses import replace
from datetime import UTC, date, datetime, time

from policies.advisory import Advisory
from policies.classes import masks_of_all
from policies.errors import PolicyError
from policies.facts import PoolFacts
from policies.freshness import NEWER_ENGINE, NOT_QUALIFIED, newer_engine, not_qualified
from policies.policy import MODES, Lift, ModelPolicy, Pin, Policy, Rule, ServingOption, digest_of
from policies.qualification import Qualification
from policies.settings import Override, PolicySettings

_ANY = masks_of_all(["any"])
FAILED = "qualification-failed"
"""The reason against what an engine drafted wrongly when it was qualified."""
_FORCE = {
    ("forbid", "confirmed"): "forbid",
    ("forbid", "suspected"): "suspect",
    ("warn", "confirmed"): "warn",
    ("warn", "suspected"): "warn",
}


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
