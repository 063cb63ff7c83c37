"""Explains a decision in plain values, with changes that would alter it and cures: each tried, none guessed."""

import dataclasses
from collections.abc import Iterable, Iterator, Mapping
from dataclasses import replace
from typing import Any

from msgspec.structs import asdict

from policies.advisory import Advisory
from policies.classes import ALL_KINDS, BIT, RequestFeatures, masks_of_all
from policies.decide import decide, in_force
from policies.decision import Decision, Reason, by_effect
from policies.engine_args import default_runner
from policies.facts import PoolFacts
from policies.freshness import newest_checked
from policies.policy import Policy, with_pools
from policies.qualification import standing
from policies.quarantine import TrialTerms, foretold, quarantine

# Changes that a caller could make to a request, by the class that each removes.
_WITHOUT: Mapping[str, tuple[str, Mapping[str, Any]]] = {
    "stop": ("leave out `stop`", {"stop": False}),
    "stream": ("do not stream", {"stream": False}),
    "thinking": ("switch thinking off", {"thinking": False}),
    "hidden_thinking": ("leave out `include_reasoning: false`", {"include_reasoning": True}),
    "unspeculable": ("leave out `min_p` and `logit_bias`", {"unspeculable": False}),
    "penalties": ("leave out the penalties", {"penalties": False}),
    "logprobs": ("leave out `logprobs`", {"logprobs": False}),
    "many": ("ask for one answer, `n: 1`", {"n": 1}),
    "images": ("leave out the images", {"images": False}),
    "single": ("leave out `parallel_tool_calls: false`", {"parallel_tool_calls": True}),
    "prompt_logprobs": ("leave out `prompt_logprobs`", {"prompt_logprobs": False}),
    "thinking_budget": ("leave out `thinking_token_budget`", {"thinking_budget": False}),
    "near_end": ("lower `max_tokens`, or shorten the conversation", {"near_end": False}),
    "guided": ("replace `guided_*` by `structured_outputs`", {"guided": False, "structured_outputs": True}),
}


def explain(
    policy: Policy, features: RequestFeatures, decision: Decision, terms: TrialTerms | None = None
) -> dict[str, Any]:
    """Explains a decision to people and scripts.

    Args:
        policy: That decided.
        features: As the caller sent them.
        decision: For which chance has not drawn.
        terms: By which chance draws whether such a request is a probe or a sample; None if it never is.
    """
    reasons = by_effect({*decision.reasons, *foretold(decision, terms)}) if terms else decision.reasons
    request = features.of_model(decision.model)
    return {
        "model": decision.model,
        "pool": decision.pool,
        "speculative": decision.speculative,
        "opt_out": decision.opt_out,
        "optimistic": decision.optimistic,
        "classes": list(decision.classes),
        "reasons": [
            {"advisory": reason.advisory, "effect": reason.effect, "summary": reason.summary} for reason in reasons
        ],
        "refused": decision.refused,
        "evidence": _evidence(reasons),
        "candidates": [asdict(candidate) for candidate in decision.candidates],
        "features": _features(request),
        "would_change": list(_would_change(in_force(policy), request, decision)),
        "qualified": _qualified(in_force(policy), decision.model),
        "policy": policy.digest,
    }


def _evidence(reasons: Iterable[Reason]) -> dict[str, str]:
    """Returns the bases by the names of the reasons; several pools may be in quarantine, each by its own."""
    bases: dict[str, dict[str, None]] = {}
    for reason in reasons:
        bases.setdefault(reason.advisory, {})[reason.basis] = None
    return {name: "; ".join(each) for name, each in bases.items()}


def _features(request: RequestFeatures) -> dict[str, Any]:
    values = request._asdict()
    del values["conversation_key"]
    values["wish"] = values.pop("preference")  # the key is public
    return values


def _qualified(policy: Policy, model: str) -> dict[str, str]:
    """Returns how far the engines of the model's drafting pools are qualified."""
    pools = [facts for facts in policy.facts if facts.model == model and facts.speculative]
    return {facts.pool: standing(facts.qualification, policy.today) for facts in pools}


def _would_change(policy: Policy, request: RequestFeatures, decision: Decision) -> Iterator[dict[str, Any]]:
    """Yields changes that would let the request speculate, or be served if it was refused; each one was tried."""
    if decision.speculative:
        return
    changes: list[tuple[str, str | None, Policy | RequestFeatures]] = [
        *_request_changes(request),
        *_facts_changes(policy, decision),
    ]
    for change, advisory, other in changes:
        if isinstance(other, Policy):
            after = decide(other, request, request.preference)
        else:
            after = decide(policy, other, other.preference)
        if after.speculative or (decision.refused and not after.refused):
            outcome = {"pool": after.pool, "speculative": after.speculative, "optimistic": after.optimistic}
            yield {"change": change, "advisory": advisory, **outcome}


def _request_changes(request: RequestFeatures) -> Iterator[tuple[str, str | None, RequestFeatures]]:
    if request.preference is False:
        yield "leave out `enable_speculative: false`", None, request._replace(preference=None)
    for name, (text, change) in _WITHOUT.items():
        if request.mask & BIT[name]:
            yield text, None, request._replace(**change)
    if request.mask & ALL_KINDS & ~BIT["plain"] and not request.tools and request.response_format:
        yield "ask for free text", None, request._replace(response_format=None, strict_schema=False)


def _facts_changes(policy: Policy, decision: Decision) -> Iterator[tuple[str, str | None, Policy]]:
    forbidding = {reason.advisory for reason in decision.reasons if reason.effect == "forbid"}
    blocking = [advisory for advisory in policy.advisories if advisory.id in forbidding]
    everything: dict[str, Any] = {}
    for advisory in blocking:
        for cure in advisory.cures:
            if cure.change:
                yield cure.text, advisory.id, _recompiled(policy, decision.model, advisory, cure.change)
        everything |= next((dict(cure.change) for cure in advisory.cures if cure.change), {})
    if policy.quarantined:
        yield "wait until the quarantine is lifted, or lift it", None, quarantine(policy, {})
    if len(blocking) > 1 and everything:
        text = "all of: " + "; ".join(f"{name} = {value}" for name, value in everything.items())
        yield text, None, _recompiled(policy, decision.model, None, everything)
    if not policy.optimistic:
        settings = dataclasses.replace(policy.settings, optimistic=True, guard=True)
        optimist = dataclasses.replace(policy, settings=settings, successor=None, memory={})
        yield "set `optimistic: true`, with the guard as the net", None, optimist


def _recompiled(policy: Policy, model: str, advisory: Advisory | None, change: Mapping[str, Any]) -> Policy:
    """Returns the policy after a change of those pools of the model that the advisory affects."""
    own = (pool for pool in policy.facts if pool.model == model)
    return with_pools(
        policy,
        model,
        (
            changed(pool, change) if pool.speculative and (advisory is None or advisory.matches(pool)) else pool
            for pool in own
        ),
    )


_OR_NEWER = "or newer"


def tried_cures(advisory: Advisory, facts: PoolFacts, advisories: Iterable[Advisory]) -> tuple[str, ...]:
    """Returns the cures that help this pool, those first that nothing else speaks against.

    A cure that names no facts can't be tried and is kept. One after which the advisory still speaks, or another one is
    known to break the same requests, is left out; one after which another suspects them, or breaks others, says so.
    Where the first version that helps has a hazard of its own, the newest that was checked is tried, and named.
    """
    known = tuple(advisories)
    others = tuple(each for each in known if each.id != advisory.id and _forbids(each))
    # One that speaks because a fact is not known holds less than one about what is.
    before = {each.id: each.assumptions(facts) for each in others if each.matches(facts)}

    def new_after(change: Mapping[str, Any]) -> list[Advisory] | None:
        """Returns what speaks only then; None if the change is no cure."""
        after = changed(facts, change)
        new = [each for each in others if each.matches(after) and before.get(each.id) != each.assumptions(after)]
        harmful = advisory.matches(after) or any(_certain(each) and _overlap(each, advisory) for each in new)
        return None if harmful else new

    clean: list[str] = []
    noted: list[str] = []
    newest = newest_checked(known).get(facts.engine or "")
    for cure in advisory.cures:
        new, text = new_after(cure.change) if cure.change else [], cure.text
        if (new is None or new) and newest and _OR_NEWER in text and "engine_version" in cure.change:
            at_newest = new_after({**cure.change, "engine_version": newest})
            if at_newest is not None and (new is None or len(at_newest) < len(new)):
                new, text = at_newest, f"{text} (take {newest})"
        if new:
            noted.append(f"{text} (then look at {', '.join(each.id for each in new)})")
        elif new is not None:
            clean.append(text)
    return (*clean, *noted)


def changed(facts: PoolFacts, change: Mapping[str, Any]) -> PoolFacts:
    """Returns a pool's facts after a cure: settings are merged, and another vLLM has its own default runner."""
    settings = {**facts.settings, **change.get("settings", {})}
    after = replace(facts, **{**change, "settings": settings})
    if "engine_version" in change and "runner" not in change and facts.engine == "vllm" and facts.runner is not None:
        stages = int(after.settings.get("pipeline_parallel_size") or 1)
        runner = default_runner(after.method, after.engine_version, hybrid=after.hybrid, stages=stages)
        after = replace(after, runner=runner)
    return after


def _forbids(advisory: Advisory) -> bool:
    """Returns True if it is about drafts: what a standard pool may not serve either, no cure is to blame for."""
    effects = advisory.effects
    return advisory.status != "withdrawn" and effects["speculative"] == "forbid" and effects["standard"] != "forbid"


def _certain(advisory: Advisory) -> bool:
    return advisory.status == "confirmed" or advisory.kills or advisory.garbles


def _overlap(one: Advisory, other: Advisory) -> bool:
    """Returns True if a request can be of interest to both: the classes of one hold those of the other."""
    first, second = masks_of_all(one.unsafe), masks_of_all(other.unsafe)
    return any(a & b in (a, b) for a in first for b in second)
