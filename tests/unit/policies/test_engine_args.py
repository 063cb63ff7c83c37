import tomllib
from pathlib import Path

import pytest

import policies.engine_args
from policies import PolicyError, facts_from_engine_args
from policies.engine_args import installed_engine, pinned_engine


def facts(args=None, model="m", family="kimi-k2", version=None, **overrides):
    return facts_from_engine_args(model, "p", family, version, args or {}, overrides)


@pytest.mark.parametrize(
    ("spec", "method", "drafter", "tokens"),
    [
        (None, None, "none", None),
        ({"method": "eagle3", "model": "org/d", "num_speculative_tokens": 3}, "eagle3", "org/d", 3),
        ('{"method": "ngram", "num_speculative_tokens": 4}', "ngram", "none", 4),
        ({"method": "qwen3_next_mtp", "num-speculative-tokens": 1}, "mtp", "none", 1),
        ({"model": "org/Kimi-K2.5-Eagle3", "num_speculative_tokens": 3}, "eagle3", "org/Kimi-K2.5-Eagle3", 3),
        ({"model": "org/small", "num_speculative_tokens": 2}, "draft_model", "org/small", 2),
    ],
)
@pytest.mark.parametrize("key", ["speculative-config", "speculative_config"])
def test_method_drafter_and_length_come_from_the_speculative_config(key, spec, method, drafter, tokens):
    found = facts({key: spec} if spec else {})
    assert (found.method, found.drafter, found.num_speculative_tokens) == (method, drafter, tokens)
    assert found.speculative == (method is not None)


@pytest.mark.parametrize(
    ("bounds", "low", "high"),
    [
        ({}, 5, 5),
        ({"prompt_lookup_min": 2}, 2, 2),
        ({"prompt_lookup_max": 4}, 4, 4),
        ({"prompt_lookup_min": 2, "prompt_lookup_max": 4}, 2, 4),
    ],
)
def test_lookup_bounds_default_as_the_engine_does(bounds, low, high):
    settings = facts({"speculative-config": {"method": "ngram", "num_speculative_tokens": 3, **bounds}}).settings
    assert (settings["prompt_lookup_min"], settings["prompt_lookup_max"]) == (low, high)


@pytest.mark.parametrize(
    ("args", "on"),
    [
        ({}, True),
        ({"no-enable-prefix-caching": True}, False),
        ({"enable_prefix_caching": False}, False),
        ({"enable-prefix-caching": "true"}, True),
    ],
)
def test_prefix_caching_is_on_unless_switched_off(args, on):
    assert facts(args).prefix_caching is on


@pytest.mark.parametrize(
    ("version", "method", "runner"),
    [("0.21.0", "eagle3", "v1"), ("0.22.0", "eagle3", None), ("0.28.0", "eagle3", None), ("0.29.0", "eagle3", "v2"),
     ("0.29.0rc1", "eagle3", "v2"), ("0.23.0", "dflash", "v1"), ("0.24.0", "dflash", None), ("0.25.0", "dspark", "v2"),
     ("0.30.0", "draft_model", "v1"), ("0.31.0", "draft_model", "v2"), ("0.31.0", "ngram", "v1"),
     ("9.0", "ngram", "v2"), ("0.31.0", "ngram_gpu", "v1"), ("9.0", "ngram_gpu", "v2"), ("9.0", "suffix", "v1"),
     ("9.0", "medusa", "v1"), ("9.0", "mlp_speculator", "v1"), ("nightly", "eagle3", None),
     ("0.1.dev7557+g977180c", "eagle3", None)],
)  # fmt: skip
def test_the_runner_follows_version_and_method(version, method, runner):
    spec = {"speculative-config": {"method": method, "num_speculative_tokens": 3, "model": "d"}}
    assert facts(spec, engine_version=version).runner == runner


def test_from_0_22_to_0_28_the_runner_goes_by_the_model_and_only_hybrids_are_sure_of_the_old_one():
    spec = {"speculative-config": {"method": "eagle3", "num_speculative_tokens": 3, "model": "d"}}
    assert facts(spec, engine_version="0.28.0", hybrid=True).runner == "v1"
    assert facts({**spec, "pipeline-parallel-size": 2}, engine_version="0.29.0").runner == "v1"
    assert facts({**spec, "pipeline-parallel-size": 2}, engine_version="0.30.0").runner == "v2"


def test_what_the_drafter_has_of_its_own_is_no_setting_of_the_engine():
    spec = {
        "method": "dflash",
        "model": "d",
        "num_speculative_tokens": 7,
        "kv_cache_dtype": "auto",
        "max_model_len": 2048,
    }
    found = facts({"speculative-config": spec, "kv-cache-dtype": "fp8", "max-model-len": 8192})
    assert (found.settings["kv_cache_dtype"], found.settings["max_model_len"]) == ("fp8", 8192)
    assert found.settings["drafter_context_shorter"] is True
    assert "max_model_len" not in facts({"speculative-config": spec}).settings


def test_async_scheduling_is_unknown_where_the_default_depends_on_more():
    assert facts(engine_version="9.0").async_scheduling is True
    assert facts(engine_version="0.19.1").async_scheduling is None
    assert facts({"no-async-scheduling": True}, engine_version="9.0").async_scheduling is False


@pytest.mark.parametrize(
    ("model", "family", "version", "hybrid"),
    [("m", "qwen3.6", None, True), ("m", "qwen3", "3.5", True), ("Qwen3.6-35B-A3B-FP8", "qwen3", None, True),
     ("Kimi-K3", "kimi-k3", None, True), ("NVIDIA-Nemotron-3-Nano", "nemotron", None, True),
     ("Llama-3.3-Nemotron-Super-49B", "llama", None, False), ("granite-4.0-h-small", "granite", None, True),
     ("Falcon-H1-7B", "falcon", None, True), ("m", "minimax-m1", None, True), ("m", "minimax-m2", None, False),
     ("Ling-2.5-1T", "ling", None, True), ("glm-5.3-flash", "glm", None, True),
     ("MiniMax-VL-01", "minimax", None, True), ("Olmo-Hybrid-7B", "olmo", None, True), ("glm-5", "glm-5", None, False),
     ("Ring-2.5-1T", "ring", None, True), ("m", "qwen3_5_moe", None, True), ("m", "qwen3_next", None, True),
     ("nemotron_h", "nemotron", None, True), ("m", "kimi_linear", None, True), ("qwen3_8b", "qwen3", None, False),
     ("m", "qwen3-coder", None, False), ("m", "qwen3-coder-next", None, True), ("m", "kimi-k2", "2.6", False)],
)  # fmt: skip
def test_hybrids_are_known_by_name_even_if_the_config_forgot(model, family, version, hybrid):
    assert facts(model=model, family=family, version=version, hybrid=False).hybrid is hybrid


def test_the_variant_of_the_weights_is_read_from_names():
    assert facts(model="kimi-k2.5-nvfp4").quantization == "nvfp4"
    assert facts({"model": "org/Qwen3-30B-FP8"}).quantization == "fp8"
    assert facts({"quantization": "modelopt_fp4"}).quantization == "nvfp4"
    assert facts().quantization == "none"


def test_a_hosted_engine_is_the_installed_one_and_parses_what_it_is_told_to():
    found = facts({"tool-call-parser": "kimi_k2"})
    assert (found.engine, found.engine_version) == ("vllm", installed_engine()[0] or pinned_engine())
    assert (found.tool_parser, found.reasoning_parser) == ("kimi_k2", "none")


def test_where_no_engine_is_installed_it_is_the_one_that_the_images_have(monkeypatch):
    monkeypatch.setattr(policies.engine_args, "installed_engine", lambda: (None, False))
    pins = tomllib.loads((Path(__file__).parents[3] / "pyproject.toml").read_text())["project"]["optional-dependencies"]
    assert f"vllm=={facts().engine_version}" in pins["gpu"]
    assert facts(engine_version="0.33.0").engine_version == "0.33.0"


def test_of_a_remote_engine_only_what_is_said_is_known():
    found = facts(kind="remote", method="eagle3", engine_version=0.19)
    assert (found.engine, found.engine_version, found.tool_parser, found.prefix_caching) == (None, "0.19", None, None)


def test_what_nobody_switched_on_is_off_on_any_kind_of_pool():
    for kind in ("vllm", "remote", "sim"):
        settings = facts(kind=kind).settings
        assert settings["rejection_sample_method"] == "standard"
        assert settings["dynamic_draft_length"] is False


def test_the_operator_knows_better():
    spec = {"speculative-config": {"method": "ngram", "num_speculative_tokens": 3}}
    found = facts(spec, runner="v1", settings={"prompt_lookup_min": 8}, proven=("tools",), opt_out=True)
    assert (found.runner, found.settings["prompt_lookup_min"], found.settings["prompt_lookup_max"]) == ("v1", 8, 5)
    assert (found.proven, found.opt_out) == (frozenset({"tools"}), True)


def test_the_draft_length_that_follows_the_load_is_a_setting():
    by_size = {"num_speculative_tokens_per_batch_size": [[1, 8, 3]]}
    spec = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3}
    assert facts({"speculative-config": spec | by_size}).settings["dynamic_draft_length"] is True
    assert facts({"speculative-config": spec}).settings["dynamic_draft_length"] is False


@pytest.mark.parametrize(
    ("args", "overrides", "says"),
    [({"speculative-config": "{"}, {}, "not JSON"), ({"speculative-config": [1]}, {}, "mapping"),
     ({}, {"colour": "red"}, "unknown facts")],
)  # fmt: skip
def test_what_makes_no_sense_is_refused(args, overrides, says):
    with pytest.raises(PolicyError, match=says):
        facts(args, **overrides)


@pytest.mark.parametrize(
    ("args", "setting", "value"),
    [
        ({}, "kv_cache_dtype", "auto"),
        ({"kv-cache-dtype": "turboquant_k8v4"}, "kv_cache_dtype", "turboquant_k8v4"),
        ({}, "kv_connector", "none"),
        ({"kv-transfer-config": '{"kv_connector": "NixlConnector"}'}, "kv_connector", "NixlConnector"),
        ({"kv_transfer_config": {"kv_role": "kv_both"}}, "kv_connector", "unnamed"),
        ({}, "structured_outputs_backend", "auto"),
        ({"structured-outputs-config": {"backend": "xgrammar"}}, "structured_outputs_backend", "xgrammar"),
        ({"structured-outputs-config.backend": "guidance"}, "structured_outputs_backend", "guidance"),
        ({"structured-outputs-config": '{"disable_any_whitespace": true}'}, "disable_any_whitespace", True),
        ({"pipeline-parallel-size": 2}, "pipeline_parallel_size", 2),
        ({}, "pipeline_parallel_size", 1),
    ],
)
def test_settings_inside_other_arguments_have_names_and_defaults(args, setting, value):
    assert facts(args).settings[setting] == value


@pytest.mark.parametrize(("method", "is_async"), [("ngram", False), ("suffix", False), ("eagle3", None)])
def test_the_v1_runner_never_schedules_some_methods_asynchronously(method, is_async):
    spec = {"speculative-config": {"method": method, "num_speculative_tokens": 3, "model": "d"}}
    assert facts(spec, engine_version="0.28.0").async_scheduling is is_async


@pytest.mark.parametrize(
    ("args", "spec", "runner"),
    [({"enable-dbo": True}, {}, "v1"), ({"ubatch-size": 2}, {}, "v1"), ({"ubatch-size": 0}, {}, "v2"),
     ({}, {"method": "draft_model", "use_heterogeneous_vocab": True}, "v1"),
     ({}, {"parallel_drafting": True}, "v1"), ({}, {}, "v2"),
     ({}, {"parallel_drafting": True, "method": "dflash"}, "v2"),
     ({"distributed-executor-backend": "external_launcher", "pipeline-parallel-size": 2}, {}, "v1"),
     ({"distributed-executor-backend": "external_launcher"}, {}, "v2"),
     ({"distributed-executor-backend": "ray", "pipeline-parallel-size": 2}, {}, "v2")],
)  # fmt: skip
def test_some_settings_fall_back_to_the_v1_runner(args, spec, runner):
    config = {"method": "eagle3", "model": "d", "num_speculative_tokens": 3, **spec}
    assert facts({**args, "speculative-config": config}, engine_version="0.33.0").runner == runner
