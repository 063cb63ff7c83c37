"""What engines told, recorded, becomes facts that are right or unknown, and never wrong; so does any other answer."""

import json
import time
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.discovery.reading import DIALECTS, Answers, EngineAnswer, engine_metrics, facts_of, known, read

RECORDINGS = Path(__file__).parent / "recordings"


def answer(document: Any, status: int = 200) -> EngineAnswer:
    return EngineAnswer(status, json.dumps(document).encode())


def recorded(name: str) -> dict[str, EngineAnswer]:
    """Returns an engine's answers to our questions, as they were recorded."""
    kept = json.loads((RECORDINGS / f"{name}.json").read_text())
    answers = {
        "models": answer(kept["models"]),
        "version": answer(kept["version"]),
        "metrics": EngineAnswer(200, "\n".join(kept["metrics"]).encode()),
        "server_info": answer(kept["server_info"])
        if "server_info" in kept
        else EngineAnswer(404, b'{"detail": "Not Found"}'),
        "min_p": answer(kept["min_p"]["body"], kept["min_p"]["status"]),
    }
    if "prompt" in kept:
        answers["rendered"] = answer({"prompt": kept["prompt"]})
    for dialect in DIALECTS:
        calls = [{"function": call} for call in kept["forced"].get(dialect.replace("glm47", "glm"), [])]
        answers[f"forced:{dialect}"] = answer({"choices": [{"message": {"tool_calls": calls}}]})
    return answers


VLLM = {"engine": "vllm", "engine_version": "0.32.0", "max_model_len": 1024, "kv_cache_dtype": "auto"}


@pytest.mark.parametrize(
    ("name", "true"),
    [
        (
            "vllm032-std",
            {**VLLM, "speculates": False, "method": "none", "prefix_caching": True, "grammar": "qwen3_coder",
             "thinking": False, "reasoning_field": "reasoning", "tool_parser": "qwen3_coder or qwen3_xml"},
        ),
        (
            "vllm032-ngram",
            {**VLLM, "speculates": True, "draft_length": 3, "prefix_caching": False, "tool_parser": "hermes"},
        ),
        (
            "vllm032-kimi-eagle3-dev",
            {**VLLM, "speculates": True, "draft_length": 3, "method": "eagle3", "num_speculative_tokens": 3,
             "drafter": "/models/tiny-kimi-eagle3", "reasoning_parser": "kimi_k2", "async_scheduling": False,
             "grammar": "kimi_k2", "thinking": True, "reasoning_field": "reasoning", "tool_parser": "kimi_k2",
             "structured_outputs_backend": "auto", "pipeline_parallel_size": 1, "prefix_caching": True},
        ),
        (
            "vllm032-draft",
            {**VLLM, "speculates": True, "draft_length": 5, "prefix_caching": True, "grammar": "qwen3_coder",
             "thinking": False, "reasoning_field": "reasoning", "tool_parser": "qwen3_coder or qwen3_xml"},
        ),
    ],
)  # fmt: skip
def test_recorded_engines_are_what_they_were_started_as(name: str, true: dict[str, Any]) -> None:
    found = {fact: finding.value for fact, finding in read(recorded(name)).items()}
    about = {"served_names", "root", "dialect"}
    assert {fact: value for fact, value in found.items() if fact not in about} == true


def test_a_likely_fact_is_shown_and_nothing_is_trusted_for_it() -> None:
    found = read(recorded("vllm032-std"))
    assert found["tool_parser"].confidence == "likely"
    assert "tool_parser" not in facts_of(found)


def test_a_drafter_without_a_name_is_an_unknown_method() -> None:
    assert facts_of(read(recorded("vllm032-ngram")))["method"] == "unknown"


_HTML = EngineAnswer(200, b"<!doctype html><html><body>Sign in</body></html>")


@pytest.mark.parametrize(
    "odd",
    [EngineAnswer(0, error="late"), _HTML, EngineAnswer(401, b"{}"), EngineAnswer(200, b"\xff\x00 1 {} nan nan\n")],
)
@pytest.mark.parametrize("name", ["metrics", "version"])
def test_without_one_of_the_answers_no_engine_is_said_not_to_draft(name: str, odd: EngineAnswer) -> None:
    answers = {**recorded("vllm032-std"), name: odd}
    assert facts_of(read(answers))["method"] == "unknown"


def test_a_router_that_has_series_of_vllm_is_no_engine() -> None:
    router = b'vllm:num_requests_running{server="http://a"} 1.0\nvllm:current_qps{server="http://a"} 2\n'
    assert facts_of(read({**recorded("vllm032-std"), "metrics": EngineAnswer(200, router)}))["method"] == "unknown"


def card(owner: str, *names: str, **more: Any) -> EngineAnswer:
    return answer({"data": [{"id": name, "object": "model", "owned_by": owner, **more} for name in names]})


ROUTER = b'vllm:num_requests_running{server="http://a"} 1.0\nvllm:gpu_prefix_cache_hit_rate{server="http://a"} 0\n'


@pytest.mark.parametrize(
    "answers",
    [
        {"models": card("library", "qwen3:8b")},
        {"models": card("llamacpp", "q.gguf", meta={"n_ctx_train": 40960}), "metrics": answer({}, 501)},
        {"models": card("hf", "tgi"), "metrics": EngineAnswer(200, b"tgi_request_count 1\n")},
        {"models": card("openai", "kimi", "gpt-4o")},
        {"models": card("specgate", "kimi")},
        {"models": card("nvidia", "m"), "metrics": EngineAnswer(200, b"dynamo_frontend_requests_total 1\n")},
        {"models": card("organization-owner", "qwen-coder", metadata={"engine_config": {}})},
        {"models": card("vllm", "Qwen/Qwen3-8B"), "version": answer({"version": "0.1.7"})},
        {"models": card("vllm", "Qwen/Qwen3-8B", root=None), "version": answer({"version": "0.1.7"}),
         "metrics": EngineAnswer(200, ROUTER)},
        {"models": card("sglang", "m"), "server_info": answer({"workers": [{"url": "http://a"}]})},
    ],
    ids=["Ollama", "llama.cpp", "TGI", "LiteLLM", "specgate", "Dynamo", "Ray Serve's LLMs", "production-stack's router",
         "the same, with metrics", "SGLang's router"],
)  # fmt: skip
def test_of_what_is_neither_vllm_nor_sglang_itself_nothing_is_known(answers: Answers) -> None:
    found = read(answers)
    assert found["served_names"].value
    assert facts_of(found) == {"method": "unknown"}


def test_engines_of_one_server_that_differ_tell_only_in_what_they_agree() -> None:
    series = [f'vllm:cache_config_info{{engine="{at}",enable_prefix_caching="{said}",cache_dtype="auto"}} 1'
              for at, said in enumerate(("True", "False"))]  # fmt: skip
    found = read({**recorded("vllm032-std"), "metrics": EngineAnswer(200, "\n".join(series).encode())})
    assert "prefix_caching" not in found
    assert found["kv_cache_dtype"].value == "auto"


_CACHE = 'vllm:cache_config_info{{block_size="16",engine="{at}",num_gpu_blocks="1000"{more}}} 1.0\n'
_SGLANG = "".join(
    f'sglang:max_total_num_tokens{{dp_rank="{group}",tp_rank="{rank}"}} 471258.0\n'
    for group, rank in ("00", "01", "10")
)


@pytest.mark.parametrize(
    ("metrics", "tokens"),
    [
        (_CACHE.format(at=0, more=""), 16_000),
        (_CACHE.format(at=0, more="") + _CACHE.format(at=1, more=""), 16_000),
        (_CACHE.format(at=0, more=',kv_cache_size_tokens="9000"'), 9_000),
        ("".join(_CACHE.format(at=at, more=',kv_cache_size_tokens="9000"') for at in (0, 1)), 18_000),
        (_CACHE.format(at=0, more=',kv_offloading_size="None"'), 16_000),
        (_CACHE.format(at=0, more=',kv_offloading_size="64.0"'), None),
        ('vllm:cache_config_info{block_size="16",num_gpu_blocks="None"} 1.0\n', None),
        (_SGLANG, 942_516),
        (_SGLANG + 'sglang:hicache_host_total_tokens{tp_rank="0"} 34000000.0\n', 34_000_000),
        ("sglang:max_total_num_tokens -5.0\nsglang:hicache_host_total_tokens 1e300\n", None),
        (_CACHE.format(at=0, more=f',kv_cache_size_tokens="{"9" * 5_000}"'), 16_000),
        ("vllm:num_requests_running 1.0\n", None),
        ("no metrics", None),
        ("", None),
    ],
    ids=["blocks", "blocks of all ranks", "tokens", "tokens of each rank", "nothing outside the GPU",
         "outside the GPU too", "not yet", "SGLang", "SGLang with the host's memory", "nonsense",
         "thousands of digits", "a router", "a page", "silence"],
)  # fmt: skip
def test_an_engines_metrics_tell_how_many_tokens_of_prompts_it_keeps(metrics: str, tokens: int | None) -> None:
    assert engine_metrics(metrics).kept_tokens == tokens


@pytest.mark.parametrize(("name", "tokens"), [("vllm032-std", 524_288), ("vllm032-draft", 349_440)])
def test_a_real_engines_metrics_tell_how_many_tokens_of_prompts_it_keeps(name: str, tokens: int) -> None:
    assert engine_metrics(recorded(name)["metrics"].text).kept_tokens == tokens


def test_an_engine_that_behaves_as_if_it_drafts_is_not_said_not_to() -> None:
    refusal = recorded("vllm032-ngram")["min_p"]
    found = read({**recorded("vllm032-std"), "min_p": refusal})
    assert (found["speculates"].confidence, facts_of(found)["method"]) == ("unknown", "unknown")


def test_answers_that_contradict_each_other_make_nothing_known() -> None:
    info = answer({"vllm_config": {"speculative_config": {"method": "eagle3", "num_speculative_tokens": 3}}})
    assert facts_of(read({**recorded("vllm032-std"), "server_info": info}))["method"] == "unknown"


def test_counters_of_versions_that_named_them_otherwise_prove_nothing() -> None:
    old = {**recorded("vllm032-std"), "version": answer({"version": "0.9.2"})}
    assert "speculates" not in read(old)


def test_a_fork_without_tags_tells_that_it_is_vllm_and_not_its_release() -> None:
    fork = {**recorded("vllm032-std"), "version": answer({"version": "0.1.dev7557+g977180c"})}
    found = read(fork)
    assert (found["engine"].value, "engine_version" in found) == ("vllm", False)


def test_sglang_tells_its_resolved_arguments() -> None:
    info = {
        "version": "0.5.23", "speculative_algorithm": "EAGLE3", "speculative_num_draft_tokens": 4,
        "speculative_draft_model_path": "org/drafter", "tool_call_parser": "kimi_k2", "reasoning_parser": None,
        "disable_radix_cache": True, "kv_cache_dtype": "fp8_e4m3", "api_key": "secret", "attn_dp_size": 8, "pp_size": 1,
        "disable_overlap_schedule": False, "page_size": 64, "disaggregation_mode": "decode",
    }  # fmt: skip
    found = read({"models": answer({"data": [{"id": "m", "owned_by": "sglang"}]}), "old_server_info": answer(info)})
    assert facts_of(found) == {
        "engine": "sglang", "engine_version": "0.5.23", "method": "eagle3", "num_speculative_tokens": 3,
        "drafter": "org/drafter", "tool_parser": "kimi_k2", "reasoning_parser": "none", "prefix_caching": False,
        "async_scheduling": True,
        "settings": {
            "kv_cache_dtype": "fp8_e4m3", "pipeline_parallel_size": 1, "page_size": 64, "enable_dp_attention": True,
            "kv_connector": "decode",
        },
    }  # fmt: skip
    assert "secret" not in str(found)


@pytest.mark.parametrize(
    ("told", "settings"),
    [
        ({"enable_dp_attention": True, "disaggregation_mode": "null"},
         {"enable_dp_attention": True, "kv_connector": "none"}),
        ({"attn_dp_size": 1, "enable_dp_attention": None, "page_size": "64"}, {"enable_dp_attention": False}),
        ({"enable_dp_attention": "yes", "enable_hierarchical_cache": 1, "disaggregation_mode": 3}, None),
    ],
)  # fmt: skip
def test_settings_of_sglang_count_if_they_are_of_their_kind(
    told: dict[str, Any], settings: dict[str, Any] | None
) -> None:
    found = read({"server_info": answer({"version": "0.5.23", "speculative_algorithm": None, **told})})
    assert facts_of(found).get("settings") == settings


@pytest.mark.parametrize("algorithm", ["EAGLE", "NEXTN", "SOMETHING_NEW"])
def test_an_algorithm_that_stands_for_several_methods_is_unknown(algorithm: str) -> None:
    found = read({"server_info": answer({"version": "0.5.23", "speculative_algorithm": algorithm})})
    assert facts_of(found)["method"] == "unknown"


def test_adapters_are_no_other_names_of_their_model() -> None:
    listed = [
        {"id": "m", "owned_by": "vllm", "root": "/w", "parent": None},
        {"id": "also-m", "owned_by": "vllm", "root": "/w", "parent": None},
        {"id": "lora", "owned_by": "vllm", "root": "/l", "parent": "m"},
    ]
    found = read({"models": answer({"data": listed})})
    assert (found["served_names"].value, found["adapters"].value) == (("m", "also-m"), ("lora",))


def test_several_models_behind_one_url_are_not_one_engine() -> None:
    listed = [{"id": name, "owned_by": "vllm", "root": f"/{name}"} for name in ("a", "b")]
    found = read({**recorded("vllm032-std"), "models": answer({"data": listed})})
    assert found["several"].value == 2
    assert "engine" not in found


@pytest.mark.parametrize(
    ("root", "family", "version", "quantization"),
    [
        ("moonshotai/Kimi-K2.6", "kimi-k2", "2.6", None),
        ("/models/Qwen3-Coder-480B-A35B-Instruct-FP8", "qwen3-coder", None, "fp8"),
        ("Qwen/Qwen3.6-27B", "qwen3.6", None, None),
        ("Qwen/Qwen3.8-Flash-Next", "qwen3.8-flash", None, None),
        ("/srv/prod", None, None, None),
        ("/models/tiny-kimi", None, None, None),
    ],
)
def test_the_weights_name_tells_the_family_where_it_begins_with_one(
    root: str, family: str | None, version: str | None, quantization: str | None
) -> None:
    found = read({"models": answer({"data": [{"id": "m", "owned_by": "vllm", "root": root}]})})
    assert [known(found, fact) for fact in ("family", "model_version", "quantization")] == [
        family, version, quantization
    ]  # fmt: skip


def test_weights_whose_name_and_template_disagree_are_of_no_known_family() -> None:
    listed = {"data": [{"id": "m", "owned_by": "vllm", "root": "Qwen/Qwen2.5-72B"}]}
    found = read({**recorded("vllm032-kimi-eagle3-dev"), "models": answer(listed)})
    assert known(found, "family") is None


def test_what_an_engine_sends_can_be_printed() -> None:
    found = read({"models": answer({"data": [{"id": "m\x1b[2J" + "x" * 9999, "owned_by": "vllm"}]})})
    (name,) = found["served_names"].value
    assert "\x1b" not in name
    assert len(name) <= 512


_KEYS = st.sampled_from(
    ["data", "id", "parent", "root", "owned_by", "version", "vllm_config", "speculative_config", "method", "choices",
     "message", "tool_calls", "function", "prompt", "speculative_algorithm", "max_model_len"]
)  # fmt: skip
_JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats() | st.text(max_size=9),
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(_KEYS | st.text(max_size=5), inner, max_size=4),
    max_leaves=12,
)
_QUESTIONS = st.sampled_from(
    ["models", "version", "metrics", "server_info", "old_server_info", "rendered", "min_p", "forced:hermes"]
)
_BODIES = st.binary(max_size=60) | _JSON.map(lambda value: json.dumps(value).encode())
_ANSWERS = st.dictionaries(
    _QUESTIONS, st.builds(EngineAnswer, st.sampled_from([0, 200, 400, 500]), _BODIES), max_size=8
)


@given(_ANSWERS)
def test_no_answer_at_all_breaks_the_reading(answers: Answers) -> None:
    facts_of(read(answers))


@given(st.binary(max_size=200) | st.text(max_size=200).map(str.encode))
def test_garbage_in_place_of_metrics_never_says_that_nothing_is_drafted(body: bytes) -> None:
    assert facts_of(read({**recorded("vllm032-std"), "metrics": EngineAnswer(200, body)}))["method"] == "unknown"
    assert engine_metrics(body.decode(errors="replace")).drafts is None


@pytest.mark.parametrize("labels", ["x", "x=", 'x="', '="', "\\", '"\\"', "}", " "])
def test_a_line_of_metrics_is_read_in_time_however_long_its_labels_are(labels: str) -> None:
    """An engine writes them; for a square of 200,000 letters, everybody would wait minutes."""
    began = time.process_time()
    engine_metrics(f'vllm:num_requests_running{{a="{labels * 200_000}}} 1\n')
    assert time.process_time() - began < 3


@pytest.mark.parametrize("version", ["9" * 5_000, "1." * 200_000, "0.32.0+" + "x" * 5_000])
def test_a_version_that_is_none_is_not_known(version: str) -> None:
    answers = {**recorded("vllm032-std"), "version": EngineAnswer(200, json.dumps({"version": version}).encode())}
    assert "engine_version" not in read(answers)
