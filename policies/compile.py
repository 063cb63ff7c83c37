"""From pool facts, advisories and the operator's settings to a policy."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from datetime import UTC, date, datetime

from policies.advisory import Advisory
from policies.classes import masks_of_all
from policies.errors import PolicyError
from policies.facts import PoolFacts
from policies.policy import Lift, ModelPolicy, Option, Pin, Policy, Rule, digest_of
from policies.settings import Override, PolicySettings

WAYS = ("speculative", "opt_out", "standard")  # in order of preference
_ANY = masks_of_all(["any"])
_FORCE = {
    ("forbid", "confirmed"): "forbid",
    ("forbid", "suspected"): "suspect",
    ("warn", "confirmed"): "warn",
    ("warn", "suspected"): "warn",
}


def compile_policy(
    facts: Iterable[PoolFacts],
    advisories: Iterable[Advisory],
    settings: PolicySettings,
    today: date | None = None,
) -> Policy:
    """Work out once what each request then only looks up.

    Args:
        facts: One for each pool; their order is the preference among pools that are otherwise equal.
        advisories: In any order.
        settings: The operator's.
        today: The day by which overrides expire; the current one (UTC) if not given.

    Raises:
        PolicyError: An override names a model, pool or advisory that does not exist.
    """
    pools = tuple(facts)
    known = tuple(sorted(advisories, key=lambda each: each.id))
    day = today or datetime.now(UTC).date()
    _check_names(pools, known, settings)
    holding = tuple(each for each in settings.overrides if each.holds(day))
    models = {name: _model(name, pools, known, holding) for name in dict.fromkeys(each.model for each in pools)}
    ends = [date.fromisoformat(each.expires) for each in holding if each.expires]
    later = compile_policy(pools, known, settings, min(ends)) if ends else None
    until = datetime(later.today.year, later.today.month, later.today.day, tzinfo=UTC).timestamp() if later else 0.0
    return Policy(pools, known, settings, day, models, digest_of(pools, known, settings, day), later, until)


def _model(
    name: str, pools: tuple[PoolFacts, ...], advisories: tuple[Advisory, ...], overrides: tuple[Override, ...]
) -> ModelPolicy:
    own = [each for each in pools if each.model == name]
    options = [
        Option(facts.pool, way, _place(facts, own), _rules(facts, way, advisories, overrides))
        for way in WAYS
        for facts in own
        if way in _ways(facts)
    ]
    pins = tuple(
        Pin(masks_of_all(each.classes) or _ANY, each.pool, each.reason)
        for each in overrides
        if each.action == "pin" and each.pool and each.speaks_of(name)
    )
    canaries = {each.pool: each.canary_share for each in own if each.canary_share}
    return ModelPolicy(tuple(options), pins, canaries)


def _place(facts: PoolFacts, own: list[PoolFacts]) -> int:
    return next(place for place, other in enumerate(own) if replace(other, pool=facts.pool) == facts)


def _ways(facts: PoolFacts) -> tuple[str, ...]:
    if not facts.speculative:
        return ("standard",)
    return ("speculative", "opt_out") if facts.opt_out else ("speculative",)


def _rules(
    facts: PoolFacts, way: str, advisories: tuple[Advisory, ...], overrides: tuple[Override, ...]
) -> tuple[Rule, ...]:
    relevant = [each for each in overrides if each.speaks_of(facts.model, facts.pool)]
    by_advisory = [
        _rule(advisory, facts, way, relevant)
        for advisory in advisories
        if advisory.effects[way] != "allow" and advisory.matches(facts)
    ]
    by_operator = [
        Rule("operator-forbid", masks_of_all(each.classes) or _ANY, "forbid", each.reason, "operator", True)
        for each in relevant
        if each.action == "forbid" and (each.pool or way == "speculative")
    ]
    return (*by_advisory, *by_operator)


def _rule(advisory: Advisory, facts: PoolFacts, way: str, overrides: list[Override]) -> Rule:
    force = _FORCE[advisory.effects[way], advisory.status]
    lifts = [
        Lift(masks_of_all(each.classes) or _ANY, "waived", f"waived until {each.expires}: {each.reason}")
        for each in overrides
        if each.action == "waive" and each.advisory == advisory.id
    ]
    if facts.proven and force == "suspect":  # a proof outweighs a suspicion; a confirmed hazard takes a waiver
        lifts.append(Lift(masks_of_all(facts.proven), "proven", "proven right on this pool by the operator"))
    guesses = advisory.assumptions(facts)
    note = f" (assumed: {', '.join(guesses)} not known)" if guesses and not advisory.problem else ""
    return Rule(
        advisory.id, masks_of_all(advisory.unsafe), force, advisory.summary + note, advisory.basis, lifts=tuple(lifts)
    )


def _check_names(pools: tuple[PoolFacts, ...], advisories: tuple[Advisory, ...], settings: PolicySettings) -> None:
    ids = {each.id for each in advisories}
    pairs: Mapping[tuple[str, str], PoolFacts] = {(each.model, each.pool): each for each in pools}
    if len(pairs) != len(pools):
        raise PolicyError("two pools of one model have the same name")
    for facts in pools:
        masks_of_all(facts.proven)
    for model in {each.model for each in pools}:
        shares = [each.canary_share for each in pools if each.model == model]
        if None not in shares:
            raise PolicyError(
                f"every pool of model {model!r} has a canary_share: one must serve the other conversations"
            )
        if sum(filter(None, shares)) >= 1:
            raise PolicyError(f"the canary_share of model {model!r} add up to 1 or more")
    for each in settings.overrides:
        if each.advisory is not None and each.advisory not in ids:
            raise PolicyError(f"override 'waive': no advisory {each.advisory!r}; see `specgate advisories list`")
        if not any(each.speaks_of(model, pool) for model, pool in pairs):
            raise PolicyError(f"override {each.action!r}: no pool {each.pool or '*'!r} of model {each.model or '*'!r}")
