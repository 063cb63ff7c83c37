"""The chain of a decision: where a request may go, in which order, and why. The tables of its stages are at the end.

Each stage is a pure function from one immutable value to the next, and leaves a reason for what it has changed. What is
true of the moment is passed in: the time, the load, the cells in quarantine, and the numbers that chance drew.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache
from itertools import accumulate
from math import lcm
from typing import Generic, NamedTuple, TypeVar

from msgspec.structs import replace

from policies.classes import GUARDED, RequestFeatures, matches, names_of
from policies.decision import Candidate, Decision, LoadOrder, Reason, Split, by_effect
from policies.policy import Contender, Policy, RequestCase, Shortlist, shortlisted
from policies.quarantine import Draw, probe, sample, take_out

Ranked = list[tuple[tuple[int, int], Candidate]]  # ((rank, place in the configuration), candidate)

FREE_SLOT = "free-slot"  # the reason of a request that went to the pool that had a slot first

_MEMORY_LIMIT = 8192  # decisions; callers choose the classes, so they could make the memory grow without bound
_MAX_ROTATIONS = 60  # of identical pools
_LAST = 9  # a canary keeps its rank among canaries, behind every other rank
_OPTED_OUT = Reason("caller-opt-out", "forbid", "The caller said enable_speculative: false.", "caller")
_NOWHERE = Reason(
    "no-speculative-pool", "inform", "The caller asked for speculation; no pool of this model has it.", "caller"
)


def decide(policy: Policy, features: RequestFeatures, preference: bool | None, now_s: float | None = None) -> Decision:
    """Decides for one request as far as its class decides: what is allowed, and in which order. The features have the
    configuration's own name of the model. A `preference` of False, the caller's `enable_speculative`, is always
    granted. Overrides expire by `now_s`, in Unix time, or by the clock.
    """
    policy = in_force(policy, now_s)
    mask = features.mask
    key = (features.model, mask, preference)
    split = policy.memory.get(key)
    if split is None:
        case = RequestCase(policy, features.model, mask, preference)
        split = as_decisions(case, shortlisted(case, [stage.applied for stage in FOR_A_CLASS]))
        if len(policy.memory) >= _MEMORY_LIMIT:
            policy.memory.clear()
        policy.memory[key] = split
    return split.of(features.conversation_key)


def choose(decision: Decision, order: LoadOrder | None = None, draw: Draw | None = None) -> Decision:
    """Returns the decision by which a request is sent now. The order is that by load, if another than that of the class
    is worth more; `draw` is None where answers are not compared.
    """
    if order is None and draw is None:
        return decision
    for applied in _APPLIED_TO_A_REQUEST:
        decision = applied(decision, order, draw)
    return decision


def in_force(policy: Policy, now_s: float | None = None) -> Policy:
    """Returns the policy itself, or, once its overrides have expired, the successor that holds now. Now is `now_s`, in
    Unix time, or the clock's if not given.
    """
    while policy.successor is not None and (time.time() if now_s is None else now_s) >= policy.until_s:
        policy = policy.successor
    return policy


# The stages for a class of requests


def _pin(case: RequestCase, shortlist: Shortlist) -> Shortlist:
    """Leaves only pools that the operator pins such requests to, if any; nothing else is said about the others."""
    pins = [pin for pin in case.model_policy.pins if matches(pin.masks, case.mask)]
    if not pins:
        return shortlist
    pools = {pin.pool for pin in pins}
    return shortlist._replace(
        contenders=tuple(each for each in shortlist.contenders if each.option.pool in pools),
        reasons=shortlist.reasons | {Reason("operator-pin", "pin", pin.reason, "operator") for pin in pins},
    )


def _preference(case: RequestCase, shortlist: Shortlist) -> Shortlist:
    """Grants a caller's "no speculation" always; who asks for it may learn that no pool has it."""
    if case.preference is None:
        return shortlist
    if case.preference:
        nowhere = not any(option.mode == "speculative" for option in case.model_policy.options)
        return shortlist._replace(reasons=shortlist.reasons | {_NOWHERE}) if nowhere else shortlist
    if not any(each.candidate.speculative for each in shortlist.contenders):
        return shortlist
    return shortlist._replace(
        contenders=tuple(
            each._replace(allowed=each.allowed and not each.candidate.speculative) for each in shortlist.contenders
        ),
        reasons=shortlist.reasons | {_OPTED_OUT},
    )


def _forbid(case: RequestCase, shortlist: Shortlist) -> Shortlist:
    """Takes out what an advisory or the operator forbids; a mere suspicion may leave it to the guard."""
    contenders, reasons = [], set(shortlist.reasons)
    for contender in shortlist.contenders:
        about = case.reasons(contender.option)
        effects = {reason.effect for reason in about}
        candidate = contender.candidate
        if candidate.speculative and "optimistic" in effects:
            candidate = replace(candidate, optimistic=True)
        contenders.append(Contender(contender.option, candidate, contender.allowed and "forbid" not in effects))
        reasons |= about
    return shortlist._replace(contenders=tuple(contenders), reasons=frozenset(reasons))


def as_decisions(case: RequestCase, shortlist: Shortlist) -> Split:
    """Returns the decision for each group of conversations.

    What is allowed is put in order: undisputed speculation first, then speculation under the guard, the engine's
    opt-out, and no drafter. Identical pools, alike in all but their name, rotate. A canary is first for its share of
    the conversations, and last for the rest. A conversation always gets the same order, so that its prefix stays cached
    where it began.
    """
    canaries = case.model_policy.canaries
    classes = names_of(case.mask)

    def decision(candidates: list[Candidate]) -> Decision:
        share = canaries.get(candidates[0].pool) if candidates else None
        canary = set() if share is None else {_canary(candidates[0].pool, share)}
        settled = len(candidates) < 2 or share is not None or bool(case.preference)
        return Decision(
            case.model,
            classes,
            by_effect(shortlist.reasons | canary),
            tuple(candidates),
            () if settled else tuple(_tier(each, candidates[0], canaries) for each in candidates),
            shortlist.suspended,
            # No trial is what could go to one of two pools only: it would count for one and never for the other.
            comparable=not case.preference and not GUARDED.isdisjoint(classes),
        )

    allowed = [
        ((each.candidate.rank, each.option.place), each.candidate) for each in shortlist.contenders if each.allowed
    ]
    pools = {candidate.pool for _, candidate in allowed}
    present = {pool: share for pool, share in canaries.items() if pool in pools}
    starts = accumulate(present.values(), initial=1.0 - sum(present.values()))
    return Split(
        tuple(starts)[: len(present)],
        tuple(tuple(map(decision, _rotations(_led_by(leader, allowed, canaries)))) for leader in (None, *present)),
    )


def _led_by(leader: str | None, ranked: Ranked, canaries: Iterable[str]) -> Ranked:
    """Returns the candidates with one canary at the front of its rank, and the other canaries last."""

    def moved(rank: tuple[int, int], pool: str) -> tuple[int, int]:
        if pool == leader:
            return (rank[0], -1)
        return (_LAST + rank[0], rank[1]) if pool in canaries else rank

    return sorted(((moved(rank, each.pool), each) for rank, each in ranked), key=lambda entry: entry[0])


def _rotations(ranked: Ranked) -> list[list[Candidate]]:
    groups = [[each for other, each in ranked if other == rank] for rank in dict.fromkeys(rank for rank, _ in ranked)]
    count = min(lcm(*map(len, groups)), _MAX_ROTATIONS) if groups else 1
    return [
        [each for group in groups for each in (*group[turn % len(group) :], *group[: turn % len(group)])]
        for turn in range(count)
    ]


def _canary(pool: str, share: float) -> Reason:
    summary = (
        f"{pool} is a canary: first for {share:.3g} of the conversations, and for the rest if nothing else is left"
    )
    return Reason("canary", "inform", summary, "operator")


def _tier(candidate: Candidate, first: Candidate, canaries: Iterable[str]) -> int:
    """Returns the candidate's tier: no load brings one under suspicion, or a canary, before the others."""
    suspected = candidate.optimistic and not first.optimistic
    return 2 * suspected + (candidate.pool in canaries and candidate is not first)


# The stages for one request


def _load(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Puts the candidates into the order of what they are worth at the present load, each tier by itself."""
    return decision if order is None else _in_order(decision, order)


@lru_cache(maxsize=1024)
def _in_order(decision: Decision, order: LoadOrder) -> Decision:
    """Returns the decision with its candidates in another order; remembered, since load moves many alike."""
    candidates = tuple([decision.candidates[place] for place in order.places])
    return replace(decision, candidates=candidates, reasons=by_effect({*decision.reasons, order.reason}), tiers=())


# The stage for a slot


def slot_order(full: Sequence[bool]) -> tuple[int, ...]:
    """Returns in which order pools are asked for a slot: as decided, those that are known to be full at the end.

    The first pool that offers one serves; each has a head start before the next one is asked (`serve/routing`). If it
    is another than the one that was decided on, the reason is `free-slot`. The pools are those of the candidates, best
    first.
    """
    return tuple(sorted(range(len(full)), key=full.__getitem__))


# The tables

Applied = TypeVar("Applied", bound=Callable[..., object])


class DecisionStage(NamedTuple, Generic[Applied]):
    """A stage of the chain.

    Attributes:
        reasons: Names of the reasons that it may leave; `*` for ids of advisories.
        after: Stages whose outcome it looks at, so that it must come later. Any other order gives the same decision.
    """

    name: str
    applied: Applied
    reasons: frozenset[str]
    after: frozenset[str] = frozenset()


def _stage(name: str, applied: Applied, reasons: str, after: str = "") -> DecisionStage[Applied]:
    return DecisionStage(name, applied, frozenset(reasons.split()), frozenset(after.split()))


# Applied once for each class of requests; the outcome is put in order by `as_decisions`, which may leave the reason
# `canary`, and remembered until the policy or the quarantine changes.
FOR_A_CLASS = (
    _stage("pin", _pin, "operator-pin"),
    _stage("preference", _preference, "caller-opt-out no-speculative-pool", after="pin"),
    _stage("forbid", _forbid, "operator-forbid qualification-failed *", after="pin"),
    _stage("quarantine", take_out, "quarantine", after="pin preference forbid"),
)
# Applied to each completion on its way. Later comes only the slot: `slot_order`, with the reason `free-slot`.
FOR_A_REQUEST = (
    _stage("load", _load, "load"),
    _stage("probe", probe, "quarantine-probe reference-sample", after="load"),
    _stage("sample", sample, "reference-sample", after="load probe"),
)
_APPLIED_TO_A_REQUEST = tuple(stage.applied for stage in FOR_A_REQUEST)
# Every reason that is not an advisory's id.
REASONS = frozenset({"canary", FREE_SLOT}).union(*(stage.reasons for stage in (*FOR_A_CLASS, *FOR_A_REQUEST))) - {"*"}
