"""Every way to write an option of vLLM means the same to the policy, and what it can't mean is refused."""

import json

import pytest
from hypothesis import assume, given
from hypothesis import strategies as st

from policies import PolicyError, facts_from_engine_args
from policies.vllm_options import READ, WITHOUT_EFFECT, full_names

SPEC = {"method": "ngram", "num_speculative_tokens": 3}
BOOLEAN = ("enable_prefix_caching", "async_scheduling", "enable_expert_parallel", "enable_dbo")


def facts(args, env=None, **overrides):
    return facts_from_engine_args("m", "p", "qwen3", None, args, overrides, env)


@pytest.mark.parametrize(
    "args",
    [
        {"speculative-config": SPEC},
        {"speculative_config": json.dumps(SPEC)},
        {"sc": SPEC},
        {"-sc": json.dumps(SPEC)},
        {"--speculative-config": SPEC},
        {"spec-method": "ngram", "spec-tokens": 3},
        {"spec_method": "ngram", "spec_tokens": 3},
        {"spec-model": "ngram", "spec-tokens": 3},
        {"spec-method": "ngram", "speculative-config": {"num_speculative_tokens": 3}},
        {"spec-tokens": 3, "speculative-config": '{"method": "ngram"}'},
        {"speculative-config.method": "ngram", "speculative-config.num_speculative_tokens": "3"},
        {"speculative_config.method": "ngram", "speculative_config": {"num-speculative-tokens": 3}},
        {"sc.method": "ngram", "sc.num-speculative-tokens": 3},
    ],
)
def test_speculation_is_found_however_it_is_written(args):
    found = facts(args)
    assert (found.method, found.num_speculative_tokens) == ("ngram", 3)
    assert (found.settings["prompt_lookup_min"], found.drafter) == (5, "none")


@pytest.mark.parametrize(
    ("spec", "method"),
    [
        ({"model": "org/small"}, "draft_model"),
        ({"model": "my_package.MyProposer"}, "custom_class"),
        ({"model": "[ngram]"}, "ngram"),
        ({"model": "org/Kimi-K2.6-EAGLE3"}, "eagle3"),
        ({"model": "yuhuili/EAGLE-LLaMA3-Instruct-8B"}, "eagle"),
        ({"model": "org/x-eagle3", "method": "draft_model"}, "eagle3"),
        ({"model": "org/dspark_qwen3_8b", "method": "draft_model"}, "dspark"),
        ({"model": "org/x-eagle3", "method": "eagle"}, "eagle"),
        ({"model": "org/x-DFlash"}, "dflash"),
        ({"model": "org/Foo-MTP"}, "mtp"),
        ({"model": "org/x", "method": "eagel3"}, "unknown"),
    ],
)
def test_the_method_is_the_one_that_the_engine_makes_of_it(spec, method):
    assert facts({"speculative-config": {"num_speculative_tokens": 2, **spec}}).method == method


@pytest.mark.parametrize(
    ("args", "fact", "value"),
    [
        ({"structured-outputs-config": {"reasoning_parser": "qwen3"}}, "reasoning_parser", "qwen3"),
        ({"structured-outputs-config.reasoning_parser": "qwen3"}, "reasoning_parser", "qwen3"),
        ({"reasoning-parser": "glm45", "structured-outputs-config": {"backend": "auto"}}, "reasoning_parser", "glm45"),
        ({"no-enable-prefix-caching": False}, "prefix_caching", True),
        ({"enable-prefix-caching": True, "no-enable-prefix-caching": True}, "prefix_caching", False),
        ({"q": "fp8"}, "quantization", "fp8"),
    ],
)  # fmt: skip
def test_facts_have_more_than_one_place(args, fact, value):
    assert getattr(facts(args), fact) == value


@pytest.mark.parametrize(
    ("args", "env", "connector"),
    [
        ({"kv-offloading-size": 1}, {}, "OffloadingConnector"),
        ({"kv-offloading-size": 1, "kv-offloading-backend": "lmcache"}, {}, "LMCacheMPConnector"),
        ({"kv-offloading-size": 1}, {"VLLM_USE_SIMPLE_KV_OFFLOAD": "1"}, "SimpleCPUOffloadConnector"),
        ({"kv-offloading-size": None}, {}, "none"),
        ({"kv-offloading-backend": "lmcache"}, {}, "none"),
        ({"kv-transfer-config.kv_connector": "NixlConnector"}, {}, "NixlConnector"),
    ],
)
def test_a_cache_that_is_offloaded_has_a_connector(args, env, connector):
    assert facts(args, env).settings["kv_connector"] == connector


@pytest.mark.parametrize(
    ("args", "setting", "value"),
    [
        ({"pp": 2}, "pipeline_parallel_size", 2),
        ({"-tp": 8}, "tensor_parallel_size", 8),
        ({"dp": 4}, "data_parallel_size", 4),
        ({"ep": True}, "enable_expert_parallel", True),
    ],
)
def test_short_names_are_read(args, setting, value):
    assert facts(args).settings[setting] == value


@pytest.mark.parametrize(
    ("args", "env", "runner"),
    [
        ({}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v1"),
        ({}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "v2"),
        ({"enable-dbo": True}, {"VLLM_USE_V2_MODEL_RUNNER": "1"}, "v2"),
        ({"watermark-config": {"key": 1}}, {"VLLM_USE_V2_MODEL_RUNNER": "0"}, "v2"),
        ({"attention-config.hisparse_config": "{}"}, {}, "v1"),
        ({}, {}, "v1"),
    ],
)
def test_the_environment_chooses_the_runner(args, env, runner):
    assert facts(args, env, engine_version="0.21.0").runner == runner


def test_a_switch_of_the_environment_that_is_no_number_is_refused():
    with pytest.raises(PolicyError, match="VLLM_USE_V2_MODEL_RUNNER"):
        facts({}, {"VLLM_USE_V2_MODEL_RUNNER": "yes"})


@given(st.sampled_from(sorted(name for name in READ | WITHOUT_EFFECT if len(name) > 4)), st.data())
def test_every_abbreviation_is_refused_and_the_whole_name_is_said(name, data):
    short = name[: data.draw(st.integers(4, len(name)))]
    assume(short not in READ | WITHOUT_EFFECT | {"config"})
    with pytest.raises(PolicyError, match=rf"abbreviation.*{name.replace('_', '-')}"):
        facts({short.replace("_", "-"): 1})


@given(st.sampled_from(BOOLEAN), st.booleans(), st.booleans())
def test_a_negated_switch_is_the_switch(name, value, dashed):
    key = f"no_{name}".replace("_", "-") if dashed else f"no_{name}"
    assert full_names({key: value}) == {name: not value}


@given(st.sampled_from(sorted(name for name in READ | WITHOUT_EFFECT if name[:7] == "enable_")), st.booleans())
def test_from_0_33_on_a_switch_is_negated_by_its_opposite_too(name, value):
    opposite = f"disable_{name.removeprefix('enable_')}"
    assert full_names({opposite: value}) == {name: not value}
    assert full_names({f"no-{opposite}".replace("_", "-"): value}) == {name: value}


def test_the_opposite_of_a_switch_that_switches_off_switches_on():
    assert full_names({"enable-cascade-attn": True}) == {"disable_cascade_attn": False}


def test_the_last_of_a_switch_and_its_opposite_counts():
    assert facts({"enable-prefix-caching": True, "disable-prefix-caching": True}).prefix_caching is False
    assert facts({"disable-prefix-caching": True, "enable-prefix-caching": True}).prefix_caching is True


@given(st.dictionaries(st.sampled_from(sorted(READ - {"spec_method", "spec_model", "spec_tokens"})), st.none()))
def test_full_names_stay_as_they_are(args):
    assert full_names(full_names(args)) == full_names(args) == args


@pytest.mark.parametrize(
    ("args", "says"),
    [
        ({"config": "engine.yaml"}, "one by one"),
        ({"spec-method": "ngram", "speculative-config": {"method": "eagle3"}}, "twice"),
        ({"spec-method": "ngram", "speculative-config": "ngram"}, "not JSON"),
        ({"no-enable-prefix-c": True}, "enable-prefix-caching"),
        ({"structured-outputs": {"backend": "guidance"}}, "structured-outputs-config"),
        ({"speculative.method": "ngram"}, "speculative-config"),
    ],
)
def test_what_cannot_be_read_is_refused_with_the_pool_and_the_cure(args, says):
    with pytest.raises(PolicyError, match=f"m/p: .*{says}"):
        facts(args)


def test_no_option_is_in_both_lists():
    assert not READ & WITHOUT_EFFECT
