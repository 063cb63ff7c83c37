import json
from datetime import date

import pytest

from policies import Override, PolicySettings, RequestFeatures, compile_policy, decide, explain
from policies.advisory import Cure
from policies.classes import MODIFIERS

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
