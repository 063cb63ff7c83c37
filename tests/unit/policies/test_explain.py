import json
import re
from dataclasses import replace
from datetime import date

import pytest
from hypothesis import given
from hypothesis import settings as hypothesis_settings
from hypothesis import strategies as st

from lab.recall.corpus import load, request_of
from policies import Override, PolicySettings, RequestFeatures, compile_policy, decide, explain
from policies.advisory import Cure, LastCheck
from policies.classes import MODIFIERS
from policies.explain import changed, tried_cures
from policies.facts import PoolFacts

TOOLS = RequestFeatures("m", tools=1, tool_choice="auto")


def explained(facts, advisories, features, **settings):
    policy = compile_policy(facts, advisories, PolicySettings(**settings))
    return explain(policy, features, decide(policy, features, features.preference))


def test_it_is_plain_json_with_the_contracts_keys(pools, advisory):
    report = json.loads(json.dumps(explained(pools(), (advisory(),), TOOLS)))
    assert report["reasons"] == [{"advisory": "a", "effect": "forbid", "summary": "s"}]
    assert (report["pool"], report["speculative"], report["refused"]) == ("standard", False, False)
    assert report["evidence"] == {"a": "advisory"}


def test_only_changes_that_help_are_offered(pools, advisory):
    helps, in_vain = Cure("new drafter", {"drafter": "b"}), Cure("new paint", {"quantization": "x"})
    banned = advisory(affects=({"drafter": "a"},), cures=(helps, in_vain))
    report = explained(pools(drafter="a"), (banned,), TOOLS)
    assert [each["change"] for each in report["would_change"]] == ["new drafter"]


def test_changes_that_help_only_together_are_offered_together(pools, advisory):
    known = (
        advisory(id="a", affects=({"drafter": "a"},), cures=(Cure("drafter", {"drafter": "b"}),)),
        advisory(id="b", affects=({"engine_version": "<1"},), cures=(Cure("engine", {"engine_version": "2"}),)),
    )
    report = explained(pools(drafter="a"), known, TOOLS)
    assert [each["change"] for each in report["would_change"]] == ["all of: drafter = b; engine_version = 2"]


def test_what_the_caller_could_change_is_tried(pools, advisory):
    known = (advisory(unsafe=("tools+stop",)),)
    report = explained(pools(), known, TOOLS._replace(stop=True))
    assert [each["change"] for each in report["would_change"]] == ["leave out `stop`"]
    report = explained(pools(), (), TOOLS._replace(preference=False))
    assert [each["change"] for each in report["would_change"]] == ["leave out `enable_speculative: false`"]


# What a caller can't leave out of a request without asking for something else.
GIVEN = {"strict", "grammar", "history"}


@pytest.mark.parametrize("name", sorted(set(MODIFIERS) - GIVEN))
def test_what_forbids_speculation_and_can_be_left_out_is_named(pools, advisory, name):
    request = RequestFeatures.of_classes("m", [name])
    report = explained(pools(), (advisory(unsafe=(name,)),), request)
    assert not report["speculative"]
    assert len(report["would_change"]) == 1


def test_optimism_is_offered_for_a_suspicion(pools, advisory):
    report = explained(pools(), (advisory(status="suspected"),), TOOLS)
    (change,) = report["would_change"]
    assert "optimistic" in change["change"]
    assert change["optimistic"]


def test_nothing_is_offered_to_a_request_that_speculates(pools):
    assert explained(pools(), (), TOOLS)["would_change"] == []


def test_what_has_expired_is_not_counted_on(pools, advisory):
    """A waiver that ended a while ago, in a process that has run on since."""
    waiver = Override("waive", "r", advisory="a", expires=date(2020, 1, 2))
    helps = Cure("new drafter", {"drafter": "b"})
    banned = advisory(affects=({"drafter": "a"},), cures=(helps, Cure("new paint", {"quantization": "x"})))
    policy = compile_policy(pools(drafter="a"), (banned,), PolicySettings(overrides=(waiver,)), date(2020, 1, 1))
    report = explain(policy, TOOLS, decide(policy, TOOLS, None))
    assert report["reasons"][0]["effect"] == "forbid"
    assert [each["change"] for each in report["would_change"]] == ["new drafter"]


OLD = PoolFacts("m", "p", method="mtp", engine="vllm", engine_version="0.28.0", runner="v1", hybrid=True)
NEWER = Cure("Use 0.30", {"engine_version": "0.30.0"})
DAY = date(2026, 11, 28)
REQUESTS = [
    request_of(classes)
    for classes in (
        "plain", "plain+stop+stream", "plain+thinking+stream", "plain+logprobs", "plain+prompt_logprobs",
        "plain+near_end", "tools_auto", "tools_auto+stream+stop", "tools_forced+thinking", "tools_auto+strict",
        "json_schema", "json_schema+thinking",
    )
]  # fmt: skip
ENTRIES = load("hazards.yaml") + load("sound.yaml")
TAKEN = ("engine_version", "tool_parser", "reasoning_parser", "prefix_caching", "async_scheduling", "quantization")


@st.composite
def crossed(draw):
    """Draws the facts of a pool, some of them from another pool of the same engine."""
    facts = draw(st.sampled_from(ENTRIES)).pools[0]
    other = draw(st.sampled_from([each for each in ENTRIES if each.pools[0].engine == facts.engine])).pools[0]
    taken = draw(st.sets(st.sampled_from([*TAKEN, "method", "family"])))
    changes = {name: getattr(other, name) for name in taken}
    changes |= {"drafter": other.drafter} if "method" in taken else {}
    changes |= {"hybrid": other.hybrid} if "family" in taken else {}
    settings = draw(st.sets(st.sampled_from(sorted(other.settings))))
    return changed(facts, {**changes, "settings": {name: other.settings[name] for name in settings}})


def forbidden(facts, advisories):
    """Returns which advisories forbid which requests, as the policy decides."""
    policy = compile_policy([facts], advisories, PolicySettings())
    reasons = [(at, reason) for at, each in enumerate(REQUESTS) for reason in decide(policy, each, None).reasons]
    return {(at, reason.advisory) for at, reason in reasons if reason.effect == "forbid"}


def told(text):
    """Returns the version that a shown cure names, and the advisories that it says to look at."""
    version, look = re.search(r" \(take ([\w.]+)\)", text), re.search(r" \(then look at (.*)\)$", text)
    return version and version[1], set(look[1].split(", ")) if look else set()


@hypothesis_settings(deadline=None, max_examples=15)
@given(facts=crossed())
def test_no_shown_cure_leads_a_pool_into_what_it_does_not_name(shipped, facts):
    before = forbidden(facts, shipped)
    for each in shipped:
        shown = tried_cures(each, facts, shipped) if each.matches(facts) else ()
        for cure in (cure for cure in each.cures if cure.change):
            for text in (text for text in shown if re.sub(r" \((take|then) .*", "", text) == cure.text):
                version, named = told(text)
                change = {**cure.change, "engine_version": version} if version else cure.change
                new = forbidden(changed(facts, change), shipped) - before
                assert {name for _, name in new} <= named, (each.id, text)


def test_a_cure_after_which_the_advisory_still_speaks_is_left_out(advisory):
    old = advisory(affects=({"engine_version": "<0.32"},), cures=(NEWER, Cure("Pray", {})))
    assert tried_cures(old, OLD, [old]) == ("Pray",)


def test_a_cure_that_leads_into_another_hazard_of_the_same_requests_is_left_out(advisory):
    old = advisory(affects=({"engine_version": "<0.30"},), cures=(NEWER,))
    trap = advisory(id="trap", affects=({"engine_version": ">=0.30"},))
    assert tried_cures(old, OLD, [old]) == ("Use 0.30",)
    assert tried_cures(old, OLD, [old, trap]) == ()
    assert tried_cures(old, OLD, [old, replace(trap, unsafe=("logprobs",))]) == ("Use 0.30 (then look at trap)",)
    assert tried_cures(old, OLD, [old, replace(trap, status="suspected")]) == ("Use 0.30 (then look at trap)",)
    assert tried_cures(old, OLD, [old, replace(trap, status="suspected", kills=True)]) == ()
    for harmless in (
        replace(trap, status="withdrawn"),
        replace(trap, effects={**trap.effects, "speculative": "warn"}),
        replace(trap, affects=({"engine": "vllm"},)),  # it spoke before, too
    ):
        assert tried_cures(old, OLD, [old, harmless]) == ("Use 0.30",)


def test_what_spoke_only_since_a_version_was_not_known_counts_once_the_cure_settles_it(advisory):
    old = advisory(affects=({"engine_version": "<0.30"},), cures=(NEWER,))
    early = advisory(
        id="early", affects=({"engine_version": "<0.31"},), status="suspected", kills=True, unsafe=("any",)
    )
    unknown = replace(OLD, engine_version=None)
    assert tried_cures(old, unknown, [old]) == ("Use 0.30",)
    assert tried_cures(old, unknown, [old, early]) == ()
    assert tried_cures(old, OLD, [old, early]) == ("Use 0.30",)  # no worse than it is


def test_the_newest_version_is_named_where_the_first_that_helps_has_a_hazard_of_its_own(advisory):
    last = LastCheck(DAY, {"vllm": "0.33.0"})
    old = advisory(
        affects=({"engine_version": "<0.30"},), cures=(replace(NEWER, text="Use 0.30 or newer"),), checked=last
    )
    trap = advisory(id="trap", affects=({"engine_version": ">=0.30,<0.32"},))
    assert tried_cures(old, OLD, [old, trap]) == ("Use 0.30 or newer (take 0.33.0)",)
    rumour = replace(trap, status="suspected")
    assert tried_cures(old, OLD, [old, rumour]) == ("Use 0.30 or newer (take 0.33.0)",)
    lasting = replace(trap, affects=({"engine_version": ">=0.30"},))
    assert tried_cures(old, OLD, [old, lasting]) == ()
    exact = replace(old, cures=(replace(NEWER, text="Use 0.30"),))
    assert tried_cures(exact, OLD, [exact, trap]) == ()


def test_another_vllm_has_its_own_default_runner_and_settings_are_merged():
    facts = replace(OLD, settings={"a": 1, "b": 2})
    after = changed(facts, {"engine_version": "0.33.0", "settings": {"b": 3}})
    assert (after.runner, after.settings) == ("v2", {"a": 1, "b": 3})
    assert changed(facts, {"engine_version": "0.33.0", "runner": "v1"}).runner == "v1"
    assert changed(replace(facts, runner=None), {"engine_version": "0.33.0"}).runner is None


def test_no_shipped_cure_contradicts_the_other_advisories_wherever_it_is_offered(shipped):
    """On every pool of the corpus; a cure that helps nowhere is a contradiction, or out of date."""
    offered, kept = set(), set()
    for entry in load("hazards.yaml"):
        facts = entry.pools[0]
        for each in shipped:
            cures = {(each.id, cure.text) for cure in each.cures}
            if not cures <= kept and each.matches(facts):
                offered |= cures
                texts = tried_cures(each, facts, shipped)
                kept |= {(each.id, cure.text) for cure in each.cures if any(t.startswith(cure.text) for t in texts)}
    assert sorted(offered - kept) == []
