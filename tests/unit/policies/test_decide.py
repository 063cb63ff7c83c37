import dataclasses
import itertools
from datetime import date

import pytest

from policies import Override, PolicyError, PolicySettings, PoolFacts, RequestFeatures, compile_policy, decide
from policies.advisory import Evidence

PLAIN = RequestFeatures("m")
TOOLS = RequestFeatures("m", tools=1, tool_choice="auto")
JSON = RequestFeatures("m", response_format="json_schema")
DAY = date(2026, 11, 21)


def settle(facts, advisories, features, preference=None, today=DAY, **settings):
    return decide(compile_policy(facts, advisories, PolicySettings(**settings), today), features, preference, now_s=0)


def effects(decision):
    return {(reason.advisory, reason.effect) for reason in decision.reasons}


def test_speculates_where_nothing_speaks_against_it(pools):
    decision = settle(pools(), (), TOOLS)
    assert (decision.pool, decision.speculative, decision.refused) == ("speculative", True, False)
    assert [c.pool for c in decision.candidates] == ["speculative", "standard"]
    assert decision.reasons == ()


def test_a_confirmed_hazard_diverts_only_the_classes_it_names(pools, advisory):
    decision = settle(pools(), (advisory(),), TOOLS)
    assert (decision.pool, decision.speculative) == ("standard", False)
    assert effects(decision) == {("a", "forbid")}
    assert settle(pools(), (advisory(),), PLAIN).speculative


def test_in_engine_opt_out_comes_before_the_standard_pool(pools, advisory):
    decision = settle(pools(opt_out=True), (advisory(),), TOOLS)
    assert (decision.pool, decision.speculative, decision.opt_out) == ("speculative", False, True)
    assert [(c.pool, c.opt_out) for c in decision.candidates] == [("speculative", True), ("standard", False)]


def test_a_hazard_that_opt_out_does_not_cure_goes_to_the_standard_pool(pools, advisory):
    stubborn = advisory(effects={"speculative": "forbid", "opt_out": "forbid", "standard": "allow"})
    assert settle(pools(opt_out=True), (stubborn,), TOOLS).pool == "standard"


def test_refuses_rather_than_use_a_forbidden_pool(pools, advisory):
    decision = settle(pools(standard=False), (advisory(),), TOOLS)
    assert decision.refused
    assert (decision.pool, decision.candidates, decision.speculative) == (None, (), False)
    assert effects(decision) == {("a", "forbid")}


def test_an_unknown_model_is_refused_not_raised(pools):
    assert settle(pools(), (), RequestFeatures("other")).refused


@pytest.mark.parametrize("mode", ["enforce", "advise"])
def test_a_caller_who_opts_out_is_never_speculated(pools, mode):
    decision = settle(pools(), (), PLAIN, False, mode=mode)
    assert (decision.pool, decision.speculative) == ("standard", False)
    assert effects(decision) == {("caller-opt-out", "forbid")}
    assert not any(candidate.speculative for candidate in decision.candidates)


def test_a_caller_who_opts_out_is_refused_where_every_pool_speculates(pools):
    assert settle(pools(standard=False), (), PLAIN, False).refused


def test_advise_lets_the_callers_wish_outweigh_an_advisory_and_enforce_does_not(pools, advisory):
    advised = settle(pools(), (advisory(),), TOOLS, True, mode="advise")
    assert advised.speculative
    assert effects(advised) == {("a", "overruled")}
    assert not settle(pools(), (advisory(),), TOOLS, None, mode="advise").speculative
    assert not settle(pools(), (advisory(),), TOOLS, True, mode="enforce").speculative


def test_a_wish_never_outweighs_the_operator(pools):
    forbid = Override("forbid", "broken today", pool="speculative")
    decision = settle(pools(), (), PLAIN, True, mode="advise", overrides=(forbid,))
    assert not decision.speculative
    assert effects(decision) == {("operator-forbid", "forbid")}


def test_a_wish_for_speculation_that_no_pool_has_is_answered_without(pools):
    standard = pools()[1:]
    decision = settle(standard, (), PLAIN, True)
    assert not decision.refused
    assert effects(decision) == {("no-speculative-pool", "inform")}


def test_a_suspicion_forbids_what_can_be_broken_and_warns_for_free_text(pools, advisory):
    suspected = advisory(status="suspected", unsafe=("any",))
    for features in (TOOLS, JSON):
        assert effects(settle(pools(), (suspected,), features)) == {("a", "forbid")}
    plain = settle(pools(), (suspected,), PLAIN)
    assert plain.speculative
    assert effects(plain) == {("a", "warn")}


def test_optimism_takes_effect_with_the_guard_only(pools, advisory):
    suspected = advisory(status="suspected")
    assert not settle(pools(), (suspected,), TOOLS, optimistic=True, guard=False).speculative
    decision = settle(pools(), (suspected,), TOOLS, optimistic=True, guard=True)
    assert decision.speculative
    assert decision.optimistic
    assert decision.candidates[0].optimistic
    assert effects(decision) == {("a", "optimistic")}


def test_optimism_does_not_lift_a_confirmed_hazard(pools, advisory):
    decision = settle(pools(), (advisory(), advisory(id="b", status="suspected")), TOOLS, optimistic=True, guard=True)
    assert not decision.speculative
    assert not decision.optimistic


def test_a_pool_nothing_speaks_against_comes_before_an_optimistic_one(pools, advisory):
    first, standard = pools()
    clean = dataclasses.replace(first, pool="clean", method="mtp")
    suspected = advisory(status="suspected", affects=({"method": "eagle3"},))
    decision = settle((first, clean, standard), (suspected,), TOOLS, optimistic=True, guard=True)
    assert [c.pool for c in decision.candidates] == ["clean", "speculative", "standard"]


def test_the_best_evidence_is_named_for_a_header(pools, advisory):
    assert settle(pools(), (), TOOLS).evidence == "none"
    assert settle(pools(), (), PLAIN, False).evidence == "none"
    assert settle(pools(), (advisory(),), TOOLS).evidence == "advisory"
    measured = advisory(id="b", evidence=(Evidence("measured", "here", "so", 9, 10, (0.6, 0.98)),))
    assert settle(pools(), (advisory(), measured), TOOLS).evidence == "measured n=10"


def test_withdrawn_advisories_never_match(pools, advisory):
    assert settle(pools(), (advisory(status="withdrawn"),), TOOLS).reasons == ()


def test_all_reasons_are_given_in_an_order_of_their_own(pools, advisory):
    known = [advisory(id=name) for name in "cab"]
    decisions = {settle(pools(), each, TOOLS) for each in itertools.permutations(known)}
    assert len(decisions) == 1
    assert [reason.advisory for reason in decisions.pop().reasons] == ["a", "b", "c"]


def test_an_unknown_fact_counts_against_speculation_and_is_named(pools, advisory):
    old = advisory(affects=({"engine_version": "<0.20"},))
    assert settle(pools(engine_version="0.20.0"), (old,), TOOLS).speculative
    for version in (None, "nightly"):
        decision = settle(pools(engine_version=version), (old,), TOOLS)
        assert not decision.speculative
        assert "engine_version not known" in decision.reasons[0].summary


def test_proof_lifts_a_suspicion_for_the_proven_class_only(pools, advisory):
    suspected = advisory(status="suspected", unsafe=("tools", "json"))
    proven = pools(proven=frozenset({"tools_auto"}))
    decision = settle(proven, (suspected,), TOOLS)
    assert decision.speculative
    assert effects(decision) == {("a", "proven")}
    assert not settle(proven, (suspected,), JSON).speculative
    both = TOOLS._replace(response_format="json_schema")
    assert not settle(proven, (suspected,), both).speculative


def test_proof_does_not_lift_a_confirmed_hazard(pools, advisory):
    assert not settle(pools(proven=frozenset({"tools"})), (advisory(),), TOOLS).speculative


class TestOverrides:
    def test_a_pin_is_exclusive(self, pools):
        pin = Override("pin", "canary", pool="standard", classes=("tools",))
        decision = settle(pools(), (), TOOLS, overrides=(pin,))
        assert [c.pool for c in decision.candidates] == ["standard"]
        assert effects(decision) == {("operator-pin", "pin")}
        assert settle(pools(), (), PLAIN, overrides=(pin,)).pool == "speculative"

    def test_a_pin_does_not_lift_a_hazard(self, pools, advisory):
        pin = Override("pin", "canary", pool="speculative")
        assert settle(pools(), (advisory(),), TOOLS, overrides=(pin,)).refused

    def test_forbid_without_a_pool_forbids_speculation(self, pools):
        forbid = Override("forbid", "incident", model="m")
        assert settle(pools(), (), PLAIN, overrides=(forbid,)).pool == "standard"

    def test_a_waiver_lifts_one_advisory_until_it_expires(self, pools, advisory):
        waive = Override("waive", "probed", advisory="a", expires=date(2026, 12, 1))
        facts, known, settings = pools(), (advisory(),), PolicySettings(overrides=(waive,))
        waived = settle(facts, known, TOOLS, overrides=(waive,))
        assert waived.speculative
        assert effects(waived) == {("a", "waived")}
        policy = compile_policy(facts, known, settings, DAY)
        assert not decide(policy, TOOLS, None, now_s=policy.until_s).speculative
        assert decide(policy, TOOLS, None, now_s=policy.until_s - 1).speculative
        assert not settle(facts, known, TOOLS, overrides=(waive,), today=date(2026, 12, 1)).speculative

    def test_a_waiver_leaves_other_advisories_alone(self, pools, advisory):
        waive = Override("waive", "probed", advisory="a", expires=date(2026, 12, 1))
        assert not settle(pools(), (advisory(), advisory(id="b")), TOOLS, overrides=(waive,)).speculative


class TestConversations:
    def test_twin_pools_share_conversations_and_each_stays_where_it_is(self, pools):
        first, standard = pools()
        facts = (first, dataclasses.replace(first, pool="twin"), standard)
        policy = compile_policy(facts, (), PolicySettings(), DAY)
        chosen = {
            key: {decide(policy, PLAIN._replace(conversation_key=key), None).pool for _ in range(3)}
            for key in map(str, range(40))
        }
        assert all(len(each) == 1 for each in chosen.values())
        assert {pool for each in chosen.values() for pool in each} == {"speculative", "twin"}

    def test_pools_that_differ_keep_the_order_of_the_configuration(self, pools):
        first, standard = pools()
        facts = (first, dataclasses.replace(first, pool="other", method="mtp"), standard)
        policy = compile_policy(facts, (), PolicySettings(), DAY)
        chosen = {decide(policy, PLAIN._replace(conversation_key=str(k)), None).pool for k in range(40)}
        assert chosen == {"speculative"}


class TestCanary:
    """A pool with a share: first for that share of the conversations, last for the others."""

    @pytest.fixture
    def policy(self, pools):
        first, standard = pools()
        canary = dataclasses.replace(first, pool="canary", drafter="new", canary_share=0.1)
        return compile_policy((canary, first, standard), (), PolicySettings(), DAY)

    @staticmethod
    def asked(policy, count=4000):
        return [decide(policy, PLAIN._replace(conversation_key=f"c{k}"), None) for k in range(count)]

    def test_it_gets_its_share_and_no_more(self, policy):
        pools_ = [each.pool for each in self.asked(policy)]
        assert set(pools_) == {"canary", "speculative"}
        assert 0.07 < pools_.count("canary") / len(pools_) < 0.13

    def test_a_conversation_stays_where_it_began(self, policy):
        assert [each.pool for each in self.asked(policy, 200)] == [each.pool for each in self.asked(policy, 200)]

    def test_it_is_the_last_resort_of_every_other_conversation(self, policy):
        orders = {tuple(each.pool for each in decision.candidates) for decision in self.asked(policy)}
        assert orders == {("canary", "speculative", "standard"), ("speculative", "standard", "canary")}

    def test_as_the_last_resort_it_speculates_before_it_opts_out(self, pools):
        first, standard = pools()
        canary = dataclasses.replace(first, pool="canary", opt_out=True, canary_share=0.1)
        policy = compile_policy((canary, standard), (), PolicySettings(), DAY)
        asked = self.asked(policy, 400)
        orders = {tuple((each.pool, each.opt_out) for each in decision.candidates) for decision in asked}
        with_and_without = (("canary", False), ("canary", True))
        assert orders == {(*with_and_without, ("standard", False)), (("standard", False), *with_and_without)}

    def test_its_decisions_say_so(self, policy):
        for decision in self.asked(policy, 400):
            assert ("canary" in {each.advisory for each in decision.reasons}) == (decision.pool == "canary")

    def test_a_request_that_belongs_to_no_conversation_never_meets_it(self, policy):
        assert decide(policy, PLAIN._replace(conversation_key=""), None).pool == "speculative"

    def test_an_advisory_keeps_it_from_what_it_forbids(self, pools, advisory):
        first, standard = pools()
        canary = dataclasses.replace(first, pool="canary", drafter="new", canary_share=0.5)
        policy = compile_policy((canary, first, standard), (advisory(),), PolicySettings(), DAY)
        chosen = {decide(policy, TOOLS._replace(conversation_key=str(k)), None).pool for k in range(60)}
        assert chosen == {"standard"}

    def test_the_opt_out_s_guarantee_holds_for_it(self, policy):
        for key in map(str, range(60)):
            decision = decide(policy, PLAIN._replace(conversation_key=key), False)
            assert (decision.pool, decision.speculative) == ("standard", False)

    def test_shares_leave_something_for_the_others(self, pools):
        first, standard = pools()
        with pytest.raises(PolicyError, match="every pool"):
            compile_policy((dataclasses.replace(first, canary_share=0.1),), (), PolicySettings(), DAY)
        greedy = [dataclasses.replace(first, pool=name, canary_share=0.5) for name in ("a", "b")]
        with pytest.raises(PolicyError, match="add up to 1"):
            compile_policy((*greedy, standard), (), PolicySettings(), DAY)


@pytest.mark.parametrize("optimistic", [False, True])
def test_a_suspicion_that_the_engine_dies_holds_free_text_too(advisory, pools, optimistic):
    settings = PolicySettings(optimistic=optimistic, guard=True)
    for kills in (False, True):
        suspicion = advisory(status="suspected", unsafe=("any",), kills=kills)
        for request in (RequestFeatures("m"), RequestFeatures("m", tools=1)):
            decided = decide(compile_policy(pools(), [suspicion], settings), request, None)
            held = kills or (request.tools > 0 and not optimistic)
            assert decided.speculative is not held, (kills, request.tools)
        proven = compile_policy(pools(proven=frozenset({"plain"})), [suspicion], settings)
        assert decide(proven, RequestFeatures("m"), None).speculative


def test_a_pool_without_drafts_can_not_be_taken_for_one_that_speculates():
    assert not PoolFacts("m", "p").speculative
    with pytest.raises(PolicyError, match="`method` is None"):
        PoolFacts("m", "p", method="none")
