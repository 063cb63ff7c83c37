"""Stories of engines that are only told of: vLLM behind a URL, SGLang, smg and simulated ones."""

from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

import policies
from policies import (
    PolicyError,
    PolicySettings,
    RequestFeatures,
    compile_policy,
    decide,
    facts_from_engine_args,
    load_advisories,
)
from policies.facts import METHODS, UNKNOWN, common, method_of
from tests.unit.policies.test_properties import requests
from tests.unit.policies.test_stories import FORCED, JSON, REFUSED, TOOLS

REMOTE = {"kind": "remote", "engine": "vllm", "method": "eagle3", "tool_parser": "kimi_k2", "hybrid": False}


@pytest.mark.parametrize(
    ("known", "tools", "plain"),
    [
        ({"engine_version": "0.19.1", "drafter": "kimi-k2.6-eagle3"}, False, True),
        ({"engine_version": "0.20.2", "drafter": "kimi-k2.6-eagle3-mla"}, True, True),
        ({"drafter": "kimi-k2.6-eagle3-mla"}, False, True),  # the version is not known
        ({"engine_version": "0.20.2"}, False, True),  # the drafter is not known
    ],
)
def test_a_remote_engine_is_judged_by_what_is_said_of_it(shipped, known, tools, plain):
    facts = (
        facts_from_engine_args("m", "speculative", "kimi-k2", "2.6", {}, REMOTE | known),
        facts_from_engine_args("m", "standard", "kimi-k2", "2.6", {}, REMOTE | known | {"method": None}),
    )
    policy = compile_policy(facts, shipped, PolicySettings())
    assert decide(policy, RequestFeatures("m", **TOOLS), None).speculative is tools
    assert decide(policy, RequestFeatures("m"), None).speculative is plain


def test_a_simulated_engine_has_no_advisories_of_its_own(shipped):
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, {"kind": "sim", "method": "sim"})]
    policy = compile_policy(facts, shipped, PolicySettings())
    for request in ({}, TOOLS, FORCED, JSON):
        assert decide(policy, RequestFeatures("m", **request), None).speculative


@pytest.mark.parametrize("engine", ["sglang", "sim"])
def test_other_engines_take_what_vllm_refuses(shipped, engine):
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, REMOTE | {"engine": engine})]
    policy = compile_policy(facts, shipped, PolicySettings())
    assert decide(policy, RequestFeatures("m", **REFUSED), None).speculative


SGLANG = {
    "kind": "remote", "engine": "sglang", "engine_version": "0.5.23", "method": "eagle", "drafter": "d",
    "tool_parser": "kimi_k2",
}  # fmt: skip


@pytest.mark.parametrize(
    ("known", "request_", "reason"),
    [
        ({"settings": {"speculative_accept_threshold_single": 0.9}}, {}, "sglang-lossy-accept-threshold"),
        ({"settings": {"speculative_accept_threshold_acc": 0.5}}, TOOLS, "sglang-lossy-accept-threshold"),
        ({}, {}, None),
        ({}, {"penalties": True}, "sglang-relaxed-penalties"),
        ({}, TOOLS, None),
        ({"quantization": "nvfp4"}, TOOLS | {"stream": False}, "sglang-kimi-bare-call"),
        ({"quantization": "nvfp4"}, TOOLS, None),
        ({"tool_parser": "glm47"}, TOOLS | {"stream": False}, None),
        ({}, JSON, "sglang-grammar-with-eagle"),
        ({"method": "ngram"}, JSON, None),
        ({}, {"guided": True}, None),  # which vLLM ignores
    ],
)
def test_what_is_known_of_sglang(shipped, known, request_, reason):
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.5", {}, SGLANG | {"hybrid": False} | known)]
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m", **request_), None)
    assert [each.advisory for each in decision.reasons] == ([reason] if reason else [])
    assert decision.speculative


@pytest.mark.parametrize("parser", ["mistral", "deepseekv3"])
def test_a_detector_that_depends_on_the_cut_of_the_text_reads_no_drafted_stream(shipped, parser):
    facts = [facts_from_engine_args("m", "s", "x", None, {}, SGLANG | {"hybrid": False, "tool_parser": parser})]
    policy = compile_policy(facts, shipped, PolicySettings())
    assert decide(policy, RequestFeatures("m", **TOOLS), None).refused
    assert decide(policy, RequestFeatures("m", **TOOLS | {"stream": False}), None).speculative


def test_a_hole_that_routing_does_not_close_says_nothing_to_callers(shipped):
    old = [facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, REMOTE | {"engine_version": "0.10.2"})]
    decision = decide(compile_policy(old, shipped, PolicySettings()), RequestFeatures("m", images=True), None)
    assert not [each for each in decision.reasons if each.advisory.startswith("cve-")]


@pytest.mark.parametrize(("engine", "warned"), [("smg", True), ("vllm", False)])
def test_a_gateway_that_crashes_on_reserved_ids_is_named_but_not_avoided(shipped, engine, warned):
    known = REMOTE | {"engine": engine, "engine_version": "0.20.2", "drafter": "kimi-k2.6-eagle3-mla"}
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, known)]
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m"), None)
    assert decision.speculative
    assert ("kimi-reserved-ids-crash" in [each.advisory for each in decision.reasons]) is warned


@pytest.mark.parametrize("method", ["mtp", "MTP", "qwen3_next_mtp", "deepseek_mtp", "NEXTN"])
def test_every_name_of_mtp_is_mtp_where_an_operator_states_it(shipped, method):
    hybrid = REMOTE | {"method": method, "hybrid": True, "prefix_caching": True, "engine_version": "0.28.0"}
    facts = [facts_from_engine_args("m", "s", "qwen3.6", "3.6", {}, hybrid)]
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m", **TOOLS), None)
    assert decision.refused
    assert "mtp-prefix-cache-on-hybrid" in [each.advisory for each in decision.reasons]


@pytest.mark.parametrize(
    ("name", "version", "method", "hybrid"),
    [
        ("llama.cpp", "10344", "draft-mtp", True),
        ("llama_cpp", None, "mtp", True),
        ("TensorRT-LLM", "1.2.0rc8", "eagle3", False),
        ("text-generation-inference", "3.1.0", "ngram", False),
        ("MLX-LM", "0.30.4", "draft_model", True),
    ],
)
def test_other_engines_are_known_by_the_names_that_people_call_them(shipped, name, version, method, hybrid):
    known = {"kind": "remote", "engine": name, "engine_version": version, "method": method, "hybrid": hybrid}
    facts = [facts_from_engine_args("m", "s", "llama", None, {}, known)]
    assert "drafts-on-other-engines" in {
        reason.advisory
        for reason in decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m"), None).reasons
    }


def test_a_method_of_none_is_an_engine_without_a_drafter():
    for method in ("none", "None", "", None):
        assert not facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, REMOTE | {"method": method}).speculative


def test_settings_may_be_spelt_with_dashes_as_on_the_command_line(shipped):
    known = REMOTE | {"engine_version": "0.33.0", "drafter": "d", "settings": {"kv-cache-dtype": "turboquant_k8v4"}}
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.5", {}, known)]
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m", **TOOLS), None)
    assert "turboquant-kv-with-speculation" in [each.advisory for each in decision.reasons if each.effect == "forbid"]


def test_a_family_may_be_stated_as_the_hub_names_the_model(shipped):
    facts = [facts_from_engine_args("m", "s", "moonshotai/Kimi-K2.5", "2.5", {}, REMOTE | {"engine_version": "0.19.1"})]
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m", **TOOLS), None)
    assert "kimi-counting-tool-parser" in [each.advisory for each in decision.reasons if each.effect == "forbid"]


@pytest.mark.parametrize(
    ("fact", "message"),
    [
        ({"hybrid": "false"}, "hybrid is true or false"),
        ({"prefix_caching": "no"}, "prefix_caching is true or false"),
        ({"async_scheduling": 1}, "async_scheduling is true or false"),
        ({"engine": ["vllm"]}, "engine is a text"),
        ({"tool_parser": False}, "tool_parser is a text"),
        ({"settings": ["kv_cache_dtype"]}, "settings is a mapping"),
        ({"method": {"method": "mtp"}}, "method is a text"),
    ],
)
def test_a_fact_that_would_match_no_advisory_is_refused(fact, message):
    with pytest.raises(PolicyError, match=message):
        facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, REMOTE | fact)


@pytest.mark.parametrize(
    ("proven", "speculative"), [(["any"], False), (["plain"], False), (["plain+prompt_logprobs"], True)]
)
def test_a_proof_of_answers_does_not_vouch_for_log_probabilities(shipped, proven, speculative):
    known = REMOTE | {"method": "mtp", "engine_version": "0.30.0", "tool_parser": "none", "proven": proven}
    facts = [facts_from_engine_args("m", "s", "glm-5", None, {}, known)]
    policy = compile_policy(facts, shipped, PolicySettings())
    decision = decide(policy, RequestFeatures("m", prompt_logprobs=True), None)
    assert decision.speculative is speculative


ADVISORIES = load_advisories(Path(policies.__file__).parent / "advisories")
KNOWN = st.fixed_dictionaries(
    {},
    optional={
        "engine": st.sampled_from(["vllm", "sglang"]),
        "engine_version": st.sampled_from(
            ["0.5.6", "0.5.23", "0.15.1", "0.18.1", "0.19.1", "0.22.0", "0.26.0", "0.29.0", "0.32.0", "0.33.0"]
        ),
        "tool_parser": st.sampled_from(["kimi_k2", "qwen3_coder", "hermes", "deepseek_v31", "deepseekv3", "none"]),
        "reasoning_parser": st.sampled_from(["kimi_k2", "qwen3", "none"]),
        "prefix_caching": st.booleans(),
        "async_scheduling": st.booleans(),
        "runner": st.sampled_from(["v1", "v2"]),
        "drafter": st.sampled_from(["none", "kimi-k2.6-eagle3", "org/x"]),
        "num_speculative_tokens": st.integers(1, 8),
        "hybrid": st.booleans(),
    },
)


@given(
    family=st.sampled_from(["kimi-k2", "qwen3.6", "qwen3", "glm-5", "deepseek-v3", "mimo", "gemma-4", "gpt-oss"]),
    known=KNOWN,
    request=requests.filter(lambda request: request.model == "m"),
)
def test_a_method_that_nobody_knows_is_never_trusted_more_than_one_that_is(family, known, request):
    def allowed(method):
        stated = {"kind": "remote", "method": method, **known}
        facts = facts_from_engine_args("m", "s", family, None, {}, stated)
        return not decide(compile_policy([facts], ADVISORIES, PolicySettings()), request, None).refused

    if allowed(UNKNOWN):
        assert [method for method in sorted(METHODS) if not allowed(method)] == []


@pytest.mark.parametrize(
    ("name", "method"),
    [("NEXTN", "mtp"), ("FROZEN_KV_MTP", "mtp"), ("STANDALONE", "draft_model"), ("EAGLE", "eagle"),
     ("EAGLE3", "eagle3"), ("NGRAM", "ngram"), ("DFLASH", "dflash"), ("DSPARK", "dspark"), ("NONE", None),
     ("SOME_PLUG_IN", UNKNOWN)],
)  # fmt: skip
def test_sglangs_algorithms_are_methods(name, method):
    assert method_of(name) == method


@pytest.mark.parametrize(
    ("one", "other", "both"),
    [
        ({"engine": "vllm", "runner": "v1"}, {"engine": "vllm", "runner": "v2"}, {"engine": "vllm", "runner": None}),
        ({"engine": "vllm", "runner": "v1"}, {"engine": "vllm"}, {"engine": "vllm", "runner": None}),
        ({"method": None}, {"method": None}, {"method": None}),
        ({"method": None}, {}, {"method": UNKNOWN}),
        ({"settings": {"a": 1, "b": 2}}, {"settings": {"a": 1, "b": 3}}, {"settings": {"a": 1, "b": None}}),
        ({"settings": {"a": 1}}, {}, {"settings": {"a": None}}),
        ({"engine_version": "1.2+cu129"}, {"engine_version": "1.2+cpu"}, {"engine_version": "1.2"}),
        ({"engine_version": "1.2+cu129"}, {"engine_version": "1.3+cu129"}, {"engine_version": None}),
        ({"engine_version": "1.2"}, {}, {"engine_version": None}),
    ],
)
def test_what_engines_of_one_pool_do_not_tell_alike_is_not_known(one, other, both):
    assert common([one, one]) == one
    assert common([one, other]) == common([other, one]) == both
