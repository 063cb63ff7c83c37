"""A cure is shown only if it helps the very pool, and leads into nothing worse."""

from dataclasses import replace

from lab.recall.corpus import load
from policies.advisory import Cure
from policies.cures import changed, tried_cures
from policies.facts import PoolFacts

OLD = PoolFacts("m", "p", method="mtp", engine="vllm", engine_version="0.28.0", runner="v1", hybrid=True)
NEWER = Cure("Use 0.30", {"engine_version": "0.30.0"})


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
            if each.matches(facts) and each.status != "withdrawn":
                offered |= {(each.id, cure.text) for cure in each.cures}
                texts = tried_cures(each, facts, shipped)
                kept |= {(each.id, cure.text) for cure in each.cures if any(t.startswith(cure.text) for t in texts)}
    assert sorted(offered - kept) == []
