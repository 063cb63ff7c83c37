"""Tries an advisory's cures on a pool before anybody sees them: a cure may lead into another hazard."""

from collections.abc import Iterable, Mapping
from dataclasses import replace
from typing import Any

from policies.advisory import Advisory
from policies.classes import masks_of_all
from policies.engine_args import default_runner
from policies.facts import PoolFacts
from policies.freshness import newest_checked

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
