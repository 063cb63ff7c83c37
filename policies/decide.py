"""The chain of a decision: where a request may go, in which order, and why. The tables of its stages are at the end.

Each stage is a pure function from one immutable value to the next, and leaves a reason for what it has changed. What is
true of the moment is passed in: the time, the load, the cells in quarantine, and the numbers that chance drew.
"""

import time
from collections.abc import Callable, Iterable, Sequence
from functools import lru_cache, reduce
from operator import or_
from typing import Generic, NamedTuple, TypeVar

from msgspec import Struct
from msgspec.structs import replace

from policies import canary
from policies.classes import CHECKED, GUARDED, NUMBERS, class_of, class_of_names, covers, names_of
from policies.decision import Candidate, Cell, Decision, Reason, Suspended, Trial
from policies.features import RequestFeatures
from policies.policy import ModelPolicy, Policy, Rule, ServingOption

PROBED_FIRST = 0.5  # chance that a cell in quarantine answers its trial first: as many are drawn for the reference
FREE_SLOT = "free-slot"  # the reason of a request that went to the pool that had a slot first

_UNPROBED = frozenset(("operator", "echo"))  # bases of a quarantine that no probe lifts: its answers look right
_EFFECTS = ("forbid", "pin", "optimistic", "overruled", "waived", "proven", "warn", "inform")
_ORDER = {name: place for place, name in enumerate(_EFFECTS)}
_MEMORY_LIMIT = 8192  # decisions; callers choose the classes, so they could make the memory grow without bound
_OPTED_OUT = Reason("caller-opt-out", "forbid", "The caller said enable_speculative: false.", "caller")
_NOWHERE = Reason(
    "no-speculative-pool", "inform", "The caller asked for speculation; no pool of this model has it.", "caller"
)


class Suspicion(NamedTuple):
    """The effect of a suspicion on free text, and on answers that an optimist's guard can check."""

    of_free_text: str
    under_guard: str


# Free text is neither right nor wrong: a mere suspicion does not cost the caller speed, unless no text comes out.
_SUSPICIONS = {
    "suspect": Suspicion("warn", "optimistic"),
    "suspect_any": Suspicion("forbid", "optimistic"),
    "suspect_death": Suspicion("warn", "forbid"),
}


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
        split = _by_class(RequestCase(policy, features.model, mask, preference))
        if len(policy.memory) >= _MEMORY_LIMIT:
            policy.memory.clear()
        policy.memory[key] = split
    return split.version(features.conversation_key)


def choose(decision: Decision, order: "LoadOrder | None" = None, draw: "Draw | None" = None) -> Decision:
    """Returns the decision by which a request is sent now. The order is that by load, if another than that of the class
    is worth more; `draw` is None where answers are not compared.
    """
    if order is None and draw is None:
        return decision
    for applied in _APPLIED_TO_A_REQUEST:
        decision = applied(decision, order, draw)
    return decision


def foretold(decision: Decision, terms: "TrialTerms | None") -> Decision:
    """Returns a decision for which nobody has drawn, with a reason for each probe that chance may make of its request.

    Args:
        decision: As `choose` returns it without a draw.
        terms: On which the model's pools are compared; None if they are not.
    """
    reference = None if terms is None or not decision.suspended else _reference(decision, terms)
    if terms is None or reference is None or not terms.probe_share:
        return decision
    reasons = {
        Reason(
            "quarantine-probe",
            "inform",
            f"{subject.pool} may be probed: {terms.probe_share:.3g} of such requests go there first, and as many to"
            f" {reference.pool}, to compare.",
            basis,
        )
        for subject, _, basis in decision.suspended
    }
    return replace(decision, reasons=_sorted({*decision.reasons, *reasons}))


def in_force(policy: Policy, now_s: float | None = None) -> Policy:
    """Returns the policy itself, or, once its overrides have expired, the successor that holds now. Now is `now_s`, in
    Unix time, or the clock's if not given.
    """
    while policy.successor is not None and (time.time() if now_s is None else now_s) >= policy.until_s:
        policy = policy.successor
    return policy


# What the stages work on


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


class Contender(NamedTuple):
    """An option, and what has become of it so far."""

    option: ServingOption
    candidate: Candidate
    allowed: bool = True


class Shortlist(NamedTuple):
    """A decision in the making.

    Attributes:
        contenders: By mode, as `MODES` has it, and in the configuration's order.
        suspended: Contenders that only a test keeps out.
    """

    contenders: tuple[Contender, ...]
    reasons: frozenset[Reason] = frozenset()
    suspended: tuple[Suspended, ...] = ()


class LoadOrder(Struct, frozen=True, cache_hash=True):
    """The order in which candidates are worth most at the present load.

    Attributes:
        places: Of the candidates, best first.
        reason: Why that is better than the order so far.
    """

    places: tuple[int, ...]
    reason: Reason


class TrialTerms(NamedTuple):
    """The terms on which one model's pools are compared.

    Attributes:
        reference: The pool that, without speculation, the others are compared with.
        probe_share: Share of the requests by which a suspended candidate is probed, and again as many that the
            reference answers; 0 where no rerun would hide its faults.
        own_share: Chance that the pool that policy and load have chosen answers first; 1 if nothing is compared.
        paired: A broken answer runs again, on the other pool of its trial.
    """

    reference: str
    probe_share: float
    own_share: float
    paired: bool


class Draw(NamedTuple):
    """The draw of chance for one request.

    Attributes:
        probe: From 0 to 1: whether the request is a probe, and of what.
        sample: From 0 to 1, drawn by itself: who answers first if it is none.
    """

    terms: TrialTerms
    probe: float
    sample: float


# The stages for a class of requests


def _pin(case: RequestCase, shortlist: Shortlist) -> Shortlist:
    """Leaves only pools that the operator pins such requests to, if any; nothing else is said about the others."""
    pins = [pin for pin in case.model_policy.pins if _matches(pin.masks, case.mask)]
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
        about = _reasons(case.policy, contender.option, case.mask, case.preference)
        effects = {reason.effect for reason in about}
        candidate = contender.candidate
        if candidate.speculative and "optimistic" in effects:
            candidate = replace(candidate, optimistic=True)
        contenders.append(Contender(contender.option, candidate, contender.allowed and "forbid" not in effects))
        reasons |= about
    return shortlist._replace(contenders=tuple(contenders), reasons=frozenset(reasons))


def _quarantine(case: RequestCase, shortlist: Shortlist) -> Shortlist:
    """Takes out what is in quarantine; if that is all that is left, the least speculative of it stays.

    Quarantine says that another pool does better, not that a pool must never be used: it never refuses a request.
    """
    if not case.policy.quarantined:
        return shortlist
    left = [each.candidate for each in shortlist.contenders if each.allowed]
    request_class = class_of(case.mask)
    cells = {each: Cell(case.model, each.pool, each.speculative, request_class) for each in left}
    verdicts = {each: case.policy.quarantined.get(cell) for each, cell in cells.items()}
    kept = [each for each in left if verdicts[each] is None]
    if not kept:
        kept = [each for each in left if _rank(each) == max(map(_rank, left))]
    reasons, suspended = set(shortlist.reasons), []
    for candidate, verdict in verdicts.items():
        if verdict is None:
            continue
        spared = candidate in kept
        note = ", but nothing else is left" if spared else ""
        how = "with" if candidate.speculative else "without"
        summary = f"{candidate.pool} {how} speculation is in quarantine for such requests{note}: {verdict.why}"
        reasons.add(Reason("quarantine", "warn" if spared else "forbid", summary, verdict.basis))
        if not spared and verdict.basis not in _UNPROBED:
            suspended.append(Suspended(candidate, cells[candidate], verdict.basis))
    contenders = tuple(each._replace(allowed=each.allowed and each.candidate in kept) for each in shortlist.contenders)
    return Shortlist(contenders, frozenset(reasons), tuple(suspended))


def _by_class(case: RequestCase) -> canary.Split[Decision]:
    """Returns the decision for each group of conversations."""
    return as_decisions(case, shortlisted(case, [stage.applied for stage in FOR_A_CLASS]))


def shortlisted(case: RequestCase, stages: Iterable[Callable[[RequestCase, Shortlist], Shortlist]]) -> Shortlist:
    """Returns what the stages leave of all options. The stages apply in their order."""
    shortlist = Shortlist(tuple(Contender(each, _candidate(each)) for each in case.model_policy.options))
    for applied in stages:
        shortlist = applied(case, shortlist)
    return shortlist


def as_decisions(case: RequestCase, shortlist: Shortlist) -> canary.Split[Decision]:
    """Returns the decision for each group of conversations.

    What is allowed is put in order: undisputed speculation first, then speculation under the guard, the engine's
    opt-out, and no drafter. Identical pools rotate; a canary is first for its share of the conversations, and for the
    rest if nothing else is left.
    """
    canaries = case.model_policy.canaries
    classes = names_of(case.mask)

    def version(candidates: list[Candidate]) -> Decision:
        share = canaries.get(candidates[0].pool) if candidates else None
        reasons = shortlist.reasons if share is None else {*shortlist.reasons, canary.reason(candidates[0].pool, share)}
        settled = len(candidates) < 2 or share is not None or bool(case.preference)
        return Decision(
            case.model,
            classes,
            _sorted(reasons),
            tuple(candidates),
            () if settled else tuple(_tier(each, candidates[0], canaries) for each in candidates),
            shortlist.suspended,
            # No trial is what could go to one of two pools only: it would count for one and never for the other.
            comparable=not case.preference and not GUARDED.isdisjoint(classes),
        )

    ranked = [
        ((_rank(each.candidate), each.option.place), each.candidate) for each in shortlist.contenders if each.allowed
    ]
    return canary.split(ranked, canaries, lambda candidate: candidate.pool, version)


def _tier(candidate: Candidate, first: Candidate, canaries: Iterable[str]) -> int:
    """Returns the candidate's tier: no load brings one under suspicion, or a canary, before the others."""
    suspected = candidate.optimistic and not first.optimistic
    return 2 * suspected + (candidate.pool in canaries and candidate is not first)


# The stages for one request


def _load(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Puts the candidates into the order of what they are worth at the present load, each tier by itself."""
    return decision if order is None else _in_order(decision, order)


def _probe(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Sends a few requests to what a test has put into quarantine, and as many to the reference."""
    suspended = decision.suspended
    if draw is None or not suspended or not draw.terms.probe_share or decision.trial is not None:
        return decision
    number = int(draw.probe / draw.terms.probe_share)
    reference = _reference(decision, draw.terms)
    if number >= 2 * len(suspended) or reference is None:
        return decision
    subject, cell, basis = suspended[number // 2]
    if number % 2:
        return _tried(decision, Trial(cell, subject, reference, PROBED_FIRST, reference, False), _sampled(reference))
    why = f"A probe: {subject.pool} is in quarantine for such requests; a rerun would hide its faults."
    reason = Reason("quarantine-probe", "inform", why, basis)
    return _tried(decision, Trial(cell, subject, reference, PROBED_FIRST, subject, False), reason)


def _sample(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Lets the reference answer a few requests first in place of the chosen pool; in either case it is a trial."""
    if draw is None or draw.terms.own_share >= 1.0 or decision.trial is not None:
        return decision
    reference = _reference(decision, draw.terms)
    subject = decision.candidates[0] if decision.candidates else None
    if reference is None or subject is None or (subject.pool, subject.speculative) == (reference.pool, False):
        return decision
    first = reference if draw.sample < 1.0 - draw.terms.own_share else subject
    cell = Cell(decision.model, subject.pool, subject.speculative, class_of_names(decision.classes)[0])
    trial = Trial(cell, subject, reference, draw.terms.own_share, first, draw.terms.paired)
    return _tried(decision, trial, _sampled(reference))


def _reference(decision: Decision, terms: TrialTerms) -> Candidate | None:
    """Returns the candidate to compare others with; None if the request is no trial."""
    if decision.comparable:
        for each in decision.candidates:
            if each.pool == terms.reference and not each.speculative:
                return each
    return None


def _sampled(reference: Candidate) -> Reason:
    why = f"A sample: {reference.pool} without speculation is measured too, to compare the others with."
    return Reason("reference-sample", "inform", why, "operator")


def _tried(decision: Decision, trial: Trial, reason: Reason) -> Decision:
    """Returns the decision as a trial: with another candidate first, which needs the reason, or as it is."""
    first = trial.first
    if first == decision.candidates[0]:
        return replace(decision, trial=trial)
    candidates = (first, *[each for each in decision.candidates if each != first])
    reasons = _sorted({*decision.reasons, reason})
    return replace(decision, candidates=candidates, reasons=reasons, tiers=(), trial=trial)


@lru_cache(maxsize=1024)
def _in_order(decision: Decision, order: LoadOrder) -> Decision:
    """Returns the decision with its candidates in another order; remembered, since load moves many alike."""
    candidates = tuple([decision.candidates[place] for place in order.places])
    return replace(decision, candidates=candidates, reasons=_sorted({*decision.reasons, order.reason}), tiers=())


# The stage for a slot


def slot_order(full: Sequence[bool]) -> tuple[int, ...]:
    """Returns in which order pools are asked for a slot: as decided, those that are known to be full at the end.

    The first pool that offers one serves; each has a head start before the next one is asked (`serve/routing`). If it
    is another than the one that was decided on, the reason is `free-slot`. The pools are those of the candidates, best
    first.
    """
    return tuple(sorted(range(len(full)), key=full.__getitem__))


# What rules say of an option


def _matches(masks: Iterable[int], mask: int) -> bool:
    return any(required & mask == required for required in masks)


def _reasons(policy: Policy, option: ServingOption, mask: int, preference: bool | None) -> set[Reason]:
    """Returns what the rules about an option say of a request."""
    overruled = bool(preference) and policy.settings.mode == "advise" and option.mode == "speculative"
    return {_reason(rule, mask, policy.optimistic, overruled) for rule in option.rules if _matches(rule.masks, mask)}


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


def _candidate(option: ServingOption) -> Candidate:
    return Candidate(option.pool, option.mode == "opt_out", option.mode == "speculative")


def _rank(candidate: Candidate) -> int:
    """Ranks undisputed speculation first, then speculation under the guard, the engine's opt-out, and no drafter."""
    if candidate.speculative:
        return 1 if candidate.optimistic else 0
    return 2 if candidate.opt_out else 3


def _sorted(reasons: Iterable[Reason]) -> tuple[Reason, ...]:
    return tuple(sorted(reasons, key=lambda reason: (_ORDER[reason.effect], reason)))


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
    _stage("quarantine", _quarantine, "quarantine", after="pin preference forbid"),
)
# Applied to each completion on its way. Later comes only the slot: `slot_order`, with the reason `free-slot`.
FOR_A_REQUEST = (
    _stage("load", _load, "load"),
    _stage("probe", _probe, "quarantine-probe reference-sample", after="load"),
    _stage("sample", _sample, "reference-sample", after="load probe"),
)
_APPLIED_TO_A_REQUEST = tuple(stage.applied for stage in FOR_A_REQUEST)
# Every reason that is not an advisory's id.
REASONS = frozenset({"canary", FREE_SLOT}).union(*(stage.reasons for stage in (*FOR_A_CLASS, *FOR_A_REQUEST))) - {"*"}
