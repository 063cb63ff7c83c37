"""Quarantine in decisions: what is out, the probes that may bring it back, and the samples to compare others with.

`policies.decide` has `take_out`, `probe` and `sample` in its chain. The trials that a request may be are worked out
once, by `possible_trials`: chance picks one of them, and an explanation foretells them.
"""

import dataclasses
from collections.abc import Iterable, Mapping
from functools import lru_cache
from itertools import chain
from typing import NamedTuple

from msgspec.structs import replace

from policies.classes import BIT, CHECKED, class_of, class_of_names, masks_of, matches
from policies.decision import Candidate, Cell, Decision, LoadOrder, Reason, Suspended, Trial, by_effect
from policies.errors import PolicyError
from policies.policy import MODES, Policy, QuarantineReason, RequestCase, ServingOption, Shortlist

PROBED_FIRST = 0.5  # chance that a cell in quarantine answers its trial first: as many are drawn for the reference

_UNPROBED = frozenset(("operator", "echo"))  # bases of a quarantine that no probe lifts: its answers look right
_NOUNS = {"quarantine-probe": "probe", "reference-sample": "sample"}
_KINDS = tuple(name for name, bit in BIT.items() if bit & CHECKED and name != "plain")
_EXAMPLE = class_of(BIT["tools_auto"] | BIT["strict"] | BIT["thinking"])


def quarantine(policy: Policy, cells: Mapping[Cell, QuarantineReason]) -> Policy:
    """Returns the policy without these cells; those of an earlier call are back in."""
    successor = policy.successor and quarantine(policy.successor, cells)
    return dataclasses.replace(policy, quarantined=dict(cells), successor=successor, memory={})


# The stage for a class of requests


def take_out(case: RequestCase, shortlist: Shortlist) -> Shortlist:
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
        kept = [each for each in left if each.rank == max(other.rank for other in left)]
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


# The stages for one request


class TrialTerms(NamedTuple):
    """The terms on which one model's pools are compared.

    Attributes:
        reference: The pool that, without speculation, the others are compared with.
        probe_share: Share of the requests by which each suspended candidate is probed, and again as many that the
            reference answers; less where that would be more than all. 0 where no rerun would hide its faults.
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


class PossibleTrial(NamedTuple):
    """A trial that one request may be.

    Attributes:
        chance: That it is this one.
        named: The reason's name, of `_NOUNS`.
        why: The reason's sentence, without what the request is.
        basis: The reason's.
    """

    trial: Trial
    chance: float
    named: str
    why: str
    basis: str


class PossibleTrials(NamedTuple):
    """The trials that one request may be.

    Attributes:
        probes: All as likely: two for each suspended candidate, which answers the first of them first.
        samples: Of one that is no probe: by the reference, and by the pool that was chosen.
    """

    probes: tuple[PossibleTrial, ...]
    samples: tuple[PossibleTrial, ...]


_NONE = PossibleTrials((), ())


@lru_cache(maxsize=1024)
def possible_trials(decision: Decision, terms: TrialTerms) -> PossibleTrials:
    """Returns the trials that the request of a decision may be, whose candidates are in the order of the load."""
    reference = _reference(decision, terms)
    if reference is None:
        return _NONE
    measured = f"{reference.pool} without speculation is measured too, to compare the others with."
    sampled = ("reference-sample", measured, "operator")
    probes: list[PossibleTrial] = []
    # At a large share not all may fit; a trial that got less than its other half would be counted as if it had as much.
    share = min(terms.probe_share, 0.5 / max(1, len(decision.suspended)))
    for subject, cell, basis in decision.suspended if share else ():
        trial = Trial(cell, subject, reference, PROBED_FIRST, subject, paired=False)
        why = f"{subject.pool} is in quarantine for such requests; a rerun would hide its faults."
        probes.append(PossibleTrial(trial, share, "quarantine-probe", why, basis))
        probes.append(PossibleTrial(trial._replace(first=reference), share, *sampled))
    chosen = decision.candidates[0]
    if terms.own_share >= 1.0 or (chosen.pool, chosen.speculative) == (reference.pool, False):
        return PossibleTrials(tuple(probes), ())
    others = 1.0 - sum(each.chance for each in probes)
    cell = Cell(decision.model, chosen.pool, chosen.speculative, class_of_names(decision.classes)[0])
    trial = Trial(cell, chosen, reference, terms.own_share, chosen, terms.paired)
    by_reference = PossibleTrial(trial._replace(first=reference), others * (1.0 - terms.own_share), *sampled)
    return PossibleTrials(tuple(probes), (by_reference, PossibleTrial(trial, others * terms.own_share, *sampled)))


def probe(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Sends a few requests to what a test has put into quarantine, and as many to the reference."""
    if draw is None or not decision.suspended or decision.trial is not None:
        return decision
    probes = possible_trials(decision, draw.terms).probes
    number = int(draw.probe / probes[0].chance) if probes else 0
    return _tried(decision, probes[number]) if number < len(probes) else decision


def sample(decision: Decision, order: LoadOrder | None, draw: Draw | None) -> Decision:
    """Lets the reference answer a few requests first in place of the chosen pool; in either case it is a trial."""
    if draw is None or draw.terms.own_share >= 1.0 or decision.trial is not None:
        return decision
    samples = possible_trials(decision, draw.terms).samples
    return _tried(decision, samples[draw.sample >= 1.0 - draw.terms.own_share]) if samples else decision


def foretold(decision: Decision, terms: TrialTerms) -> set[Reason]:
    """Returns a reason for every trial by which chance may let another pool answer first than the chosen one. Nobody
    has drawn for the decision yet.
    """
    chances: dict[tuple[str, str, str], float] = {}
    for each in chain(*possible_trials(decision, terms)):
        if each.trial.first != decision.candidates[0]:
            reason = each.named, each.why, each.basis
            chances[reason] = chances.get(reason, 0.0) + each.chance
    return {
        Reason(named, "inform", f"{chance:.3g} of such requests are {_NOUNS[named]}s: {why}", basis)
        for (named, why, basis), chance in chances.items()
    }


def _reference(decision: Decision, terms: TrialTerms) -> Candidate | None:
    """Returns the candidate to compare others with; None if the request is no trial."""
    if decision.comparable:
        for each in decision.candidates:
            if each.pool == terms.reference and not each.speculative:
                return each
    return None


def _tried(decision: Decision, possible: PossibleTrial) -> Decision:
    """Returns the decision as a trial: with another candidate first, which needs a reason, or as it is."""
    first = possible.trial.first
    if first == decision.candidates[0]:
        return replace(decision, trial=possible.trial)
    candidates = (first, *[each for each in decision.candidates if each != first])
    reason = Reason(possible.named, "inform", f"A {_NOUNS[possible.named]}: {possible.why}", possible.basis)
    reasons = by_effect({*decision.reasons, reason})
    return replace(decision, candidates=candidates, reasons=reasons, tiers=(), trial=possible.trial)


# What others ask of it


def reference_pool(policy: Policy, model: str) -> str | None:
    """Returns the pool that, without speculation, the model's other pools are compared with.

    It is the first standard pool, else the first that can opt out; None if every pool of the model speculates, so that
    there is nothing to compare with.
    """
    options = policy.models[model].options
    best = max(options, key=lambda option: (MODES.index(option.mode), -option.place))
    return None if best.mode == "speculative" else best.pool


def is_suspected(policy: Policy, cell: Cell) -> bool:
    """Returns True if any advisory warns of this cell, be it waived, only suspected, or a warning."""
    mask = mask_of_class(cell.request_class)
    options: Iterable[ServingOption] = policy.models[cell.model].options if cell.model in policy.models else ()
    return any(
        matches(rule.masks, mask)
        for option in options
        if option.pool == cell.pool and (option.mode == "speculative") == cell.speculative
        for rule in option.rules
    )


def mask_of_class(request_class: str) -> int:
    """Returns the mask of a request class as cells name it.

    Raises:
        PolicyError: It names no class whose answers can be checked.
    """
    try:
        masks = masks_of(request_class)
    except PolicyError:
        masks = ()
    if len(masks) != 1 or not masks[0] & CHECKED or masks[0] & BIT["plain"] or class_of(masks[0]) != request_class:
        raise PolicyError(
            f"{request_class!r} is not a class whose answers are checked; such a class lists kinds that can be checked "
            f"({', '.join(_KINDS)}), then strict, then thinking, such as {_EXAMPLE!r}"
        )
    return masks[0]
