"""The decision: which pool, with or without speculation, and every reason. Pure, total, independent of any order."""

import time
from bisect import bisect_right
from collections.abc import Iterable, Sequence
from functools import reduce
from operator import or_
from zlib import crc32

from policies import canary
from policies.classes import CHECKED, NUMBERS, class_of, covers, names_of
from policies.decision import Candidate, Decision, Reason
from policies.features import RequestFeatures
from policies.policy import Cell, ModelPolicy, Option, Policy, Rule

_EFFECTS = ("forbid", "pin", "optimistic", "overruled", "waived", "proven", "warn", "inform")
_ORDER = {name: place for place, name in enumerate(_EFFECTS)}
_POINTS = 2**32  # values of crc32
_MEMORY_LIMIT = 8192  # decisions; callers choose the classes, so they could make the memory grow without bound
_OPTED_OUT = Reason("caller-opt-out", "forbid", "The caller said enable_speculative: false.", "caller")
_NOWHERE = Reason(
    "no-speculative-pool", "inform", "The caller asked for speculation; no pool of this model has it.", "caller"
)

Ranked = canary.Ranked[Candidate]


def decide(policy: Policy, features: RequestFeatures, preference: bool | None, now_s: float | None = None) -> Decision:
    """Decides for one request.

    Args:
        policy: The compiled policy.
        features: Of the request, under the configuration's own model name.
        preference: The caller's `enable_speculative`. False is always granted.
        now_s: Unix time, by which overrides expire; the clock if not given.
    """
    policy = in_force(policy, now_s)
    mask = features.mask
    key = (features.model, mask, preference)
    split = policy.memory.get(key)
    if split is None:
        split = _decide(policy, features.model, mask, preference)
        if len(policy.memory) >= _MEMORY_LIMIT:
            policy.memory.clear()
        policy.memory[key] = split
    return _version(split, features.conversation_key)


def in_force(policy: Policy, now_s: float | None = None) -> Policy:
    """Returns the policy itself, or, once its overrides have expired, the successor that holds now.

    Args:
        policy: The compiled policy.
        now_s: Unix time; the clock if not given.
    """
    while policy.successor is not None and (time.time() if now_s is None else now_s) >= policy.until_s:
        policy = policy.successor
    return policy


def _version(split: canary.Split[Decision], conversation: str) -> Decision:
    """Returns the version for a conversation; an unidentified one gets the first version, never a canary's."""
    if not split.ends and len(split.versions[0]) == 1:
        return split.versions[0][0]
    number = crc32(conversation.encode("utf-8", "replace"))
    versions = split.versions[bisect_right(split.ends, number / _POINTS)]
    return versions[number % len(versions)]


def led_by(decision: Decision, candidate: Candidate, reason: Reason) -> Decision:
    """Returns the decision with one candidate put first, and one reason added.

    Args:
        decision: The original decision.
        candidate: May be among the decision's candidates or not.
        reason: Why it comes first.
    """
    others = [other for other in decision.candidates if other != candidate]
    return in_order(decision, [candidate, *others], reason)


def in_order(decision: Decision, candidates: Sequence[Candidate], reason: Reason) -> Decision:
    """Returns the decision with its candidates in another order, and one reason added.

    Args:
        decision: The original decision.
        candidates: Best first.
        reason: Why they are in this order.
    """
    return _decision(decision.model, decision.classes, _sorted({*decision.reasons, reason}), candidates)


def _sorted(reasons: set[Reason]) -> tuple[Reason, ...]:
    return tuple(sorted(reasons, key=lambda reason: (_ORDER[reason.effect], reason)))


def _decide(policy: Policy, name: str, mask: int, preference: bool | None) -> canary.Split[Decision]:
    """Returns the decision for each group of conversations."""
    model = policy.models.get(name, ModelPolicy((), ()))
    pins = [pin for pin in model.pins if any(required & mask == required for required in pin.masks)]
    pinned = {pin.pool for pin in pins}
    reasons = {Reason("operator-pin", "pin", pin.reason, "operator") for pin in pins}
    ranked: Ranked = []
    for option in model.options:
        if pinned and option.pool not in pinned:
            continue
        about = _reasons(policy, option, mask, preference)
        reasons |= about
        effects = {reason.effect for reason in about}
        if option.mode == "speculative" and preference is False:
            reasons.add(_OPTED_OUT)
        elif "forbid" not in effects:
            candidate = _candidate(option, effects)
            ranked.append(((_rank(candidate), option.place), candidate))
    if preference and not any(option.mode == "speculative" for option in model.options):
        reasons.add(_NOWHERE)
    ranked, quarantine = _unquarantined(policy, name, class_of(mask), ranked)
    reasons |= quarantine

    def version(candidates: list[Candidate]) -> Decision:
        share = model.canaries.get(candidates[0].pool) if candidates else None
        all_reasons = reasons if share is None else {*reasons, _canary(candidates[0].pool, share)}
        return _decision(name, names_of(mask), _sorted(all_reasons), candidates)

    return canary.split(ranked, model.canaries, lambda candidate: candidate.pool, version)


def _canary(pool: str, share: float) -> Reason:
    summary = (
        f"{pool} is a canary: first for {share:.3g} of the conversations, and for the rest if nothing else is left"
    )
    return Reason("canary", "inform", summary, "operator")


def _unquarantined(policy: Policy, model: str, request_class: str, ranked: Ranked) -> tuple[Ranked, set[Reason]]:
    """Returns the candidates that are not in quarantine, if all are the least speculative of them; and the reasons.

    Quarantine says that another pool does better, not that a pool must never be used: it never refuses a request.
    """
    reasons: set[Reason] = set()
    if not policy.quarantined:
        return ranked, reasons
    quarantined = {
        candidate: policy.quarantined.get(Cell(model, candidate.pool, candidate.speculative, request_class))
        for _, candidate in ranked
    }
    kept = [entry for entry in ranked if quarantined[entry[1]] is None]
    if ranked and not kept:
        last = max(rank for (rank, _), _ in ranked)
        kept = [entry for entry in ranked if entry[0][0] == last]
    for candidate, reason in quarantined.items():
        if reason is not None:
            spared = any(other == candidate for _, other in kept)
            note = ", but nothing else is left" if spared else ""
            how = "with" if candidate.speculative else "without"
            summary = f"{candidate.pool} {how} speculation is in quarantine for such requests{note}: {reason.why}"
            reasons.add(Reason("quarantine", "warn" if spared else "forbid", summary, reason.basis))
    return kept, reasons


def _decision(
    model: str, classes: tuple[str, ...], reasons: tuple[Reason, ...], candidates: Sequence[Candidate]
) -> Decision:
    first = candidates[0] if candidates else None
    return Decision(
        model=model,
        pool=first.pool if first else None,
        speculative=bool(first and first.speculative),
        opt_out=bool(first and first.opt_out),
        optimistic=bool(first and first.optimistic),
        classes=classes,
        reasons=reasons,
        refused=first is None,
        candidates=tuple(candidates),
    )


def _reasons(policy: Policy, option: Option, mask: int, preference: bool | None) -> set[Reason]:
    """Returns what the rules about an option say of a request."""
    overruled = bool(preference) and policy.settings.mode == "advise" and option.mode == "speculative"
    return {
        _reason(rule, mask, policy.optimistic, overruled)
        for rule in option.rules
        if any(required & mask == required for required in rule.masks)
    }


def _reason(rule: Rule, mask: int, optimistic: bool, overruled: bool) -> Reason:
    for lift in rule.lifts:
        # Whoever proved prose right did not look at the numbers beside it.
        if covers(lift.masks, mask, _numbers(rule.masks, mask) if lift.effect == "proven" else 0):
            return Reason(rule.advisory, lift.effect, f"{rule.summary} ({lift.note})", rule.basis)
    effect = rule.force
    if effect == "suspect":
        effect = _suspected(rule.masks, mask, optimistic)
    if effect == "forbid" and overruled and not rule.by_operator:
        effect = "overruled"
    return Reason(rule.advisory, effect, rule.summary, rule.basis)


def _numbers(masks: Iterable[int], mask: int) -> int:
    """Returns the classes of numbers for which a rule's masks match a request."""
    return reduce(or_, (required & NUMBERS for required in masks if required & mask == required), 0)


def _suspected(masks: Iterable[int], mask: int, optimistic: bool) -> str:
    if _numbers(masks, mask):
        return "forbid"  # a wrong number looks right, also to the guard
    if not mask & CHECKED:
        return "warn"  # free text is neither right nor wrong: a mere suspicion does not cost the caller speed
    return "optimistic" if optimistic else "forbid"


def _candidate(option: Option, effects: set[str]) -> Candidate:
    speculative = option.mode == "speculative"
    return Candidate(option.pool, option.mode == "opt_out", speculative, speculative and "optimistic" in effects)


def _rank(candidate: Candidate) -> int:
    """Ranks undisputed speculation first, then speculation under the guard, the engine's opt-out, and no drafter."""
    if candidate.speculative:
        return 1 if candidate.optimistic else 0
    return 2 if candidate.opt_out else 3
