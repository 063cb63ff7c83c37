"""Each story of the advisories: a configuration and a request go in, the decision and its reason come out."""

from typing import Any, NamedTuple

import pytest

from policies import PolicySettings, RequestFeatures, compile_policy, decide, facts_from_engine_args


class Story(NamedTuple):
    name: str
    model: str
    family: str
    version: str | None
    args: dict[str, Any]
    spec: dict[str, Any]
    known: dict[str, Any]
    request: dict[str, Any]
    speculative: bool
    reason: str | None


TOOLS = {"tools": 1, "tool_choice": "auto", "stream": True}
FORCED = {"tools": 1, "tool_choice": "required", "stream": True}
JSON = {"response_format": "json_schema", "strict_schema": True}
REFUSED = {"unspeculable": True}
KIMI = {"tool-call-parser": "kimi_k2", "reasoning-parser": "kimi_k2"}
OURS = {"tool-call-parser": "specgate_kimi_k2", "tokenizer-mode": "specgate_kimi"}
QWEN = {"tool_call_parser": "qwen3_coder", "reasoning_parser": "qwen3"}


def eagle3(drafter: str) -> dict[str, Any]:
    return {"method": "eagle3", "model": drafter, "num_speculative_tokens": 3}


def ngram(low: int | None = None, high: int | None = None) -> dict[str, Any]:
    bounds = {"prompt_lookup_min": low, "prompt_lookup_max": high}
    return {"method": "ngram", "num_speculative_tokens": 3, **{k: v for k, v in bounds.items() if v}}


def on(version: str, **more: Any) -> dict[str, Any]:
    return {"engine_version": version, **more}


MTP = {"method": "qwen3_next_mtp", "num_speculative_tokens": 1}
K26, K25, Q36 = ("kimi-k2.6", "kimi-k2", "2.6"), ("kimi-k2.5", "kimi-k2", "2.5"), ("qwen3.6", "qwen3.6", "3.6")
MLA = eagle3("lightseekorg/kimi-k2.6-eagle3-mla")
ORIGINAL = eagle3("/models/kimi-k2.6-eagle3/")
COUNTING, BARE = "kimi-counting-tool-parser", "kimi-nvfp4-missing-section-begin"
STATE, PROBATION, LOW = "ngram-on-hybrid-before-0.32", "ngram-on-hybrid-probation", "ngram-small-lookup-min"
GRAMMAR, CACHE, STOP = "grammar-skipped-after-reasoning", "mtp-prefix-cache-on-hybrid", "stop-strings-shift-markers"

STORIES = [
    Story("R0: K2.6 with its original drafter", *K26, KIMI, ORIGINAL, on("0.19.1"), TOOLS, False,
          "kimi-k2.6-original-eagle3-drafter"),
    Story("R0 on a newer engine too", *K26, OURS, ORIGINAL, on("0.32.0"), TOOLS, False,
          "kimi-k2.6-original-eagle3-drafter"),
    Story("R0: free text was never hit", *K26, KIMI, ORIGINAL, on("0.19.1"), {}, True, None),
    Story("R0's cure", *K26, KIMI, MLA, on("0.20.2"), TOOLS, True, None),
    Story("R0's cure needs a newer parser than 0.19.1's", *K26, KIMI, MLA, on("0.19.1"), TOOLS, False, COUNTING),
    Story("the K2.5 pair on a newer engine", *K25, KIMI, eagle3("Kimi-K2.5-Eagle3"), on("0.20.2"), TOOLS, True, None),
    Story("the K2.5 pair on the counting parser", *K25, KIMI, eagle3("Kimi-K2.5-Eagle3"), on("0.19.1"), TOOLS, False,
          COUNTING),
    Story("R1: bundled image", "kimi-k2-thinking", "kimi-k2", None, KIMI, eagle3("nvidia/Kimi-K2.5-Thinking-Eagle3"),
          on("0.19.0"), TOOLS, False, COUNTING),
    Story("NVFP4 on a stock parser", "kimi-k2.5-nvfp4", "kimi-k2", "2.5", KIMI, eagle3("k"), on("0.33.0"), TOOLS, False,
          BARE),
    Story("NVFP4 on ours", "kimi-k2.5-nvfp4", "kimi-k2", "2.5", OURS, eagle3("k"), on("0.33.0"), TOOLS, True, None),
    Story("R2: ngram on a hybrid", *Q36, QWEN, ngram(2, 4), on("0.19.2rc1"), TOOLS, False, LOW),
    Story("R2's mask is no cure", *Q36, QWEN, ngram(8, 10), on("0.26.0"), TOOLS, False, STATE),
    Story("the hybrid is known by its name", "Qwen3.6-35B-A3B-FP8", "qwen3", None, QWEN, ngram(), on("0.31"), TOOLS,
          False, STATE),
    Story("fixed in code, on probation", *Q36, QWEN, ngram(2, 4), on("0.32.0", runner="v1"), TOOLS, False, PROBATION),
    Story("proven by the operator", *Q36, QWEN, ngram(8), on("0.32.0", proven=["tools_auto"]), TOOLS, True, PROBATION),
    Story("ngram where no state can break", "qwen3-8b", "qwen3", None, QWEN, ngram(2), on("0.32.0"), TOOLS, True, None),
    Story("a large minimum is no safeguard on the V2 runner", "qwen3-8b", "qwen3", None, QWEN, ngram(8),
          on("0.32.0", runner="v2"), TOOLS, True, "ngram-lookup-min-void-on-v2"),
    Story("old qwen parser", "qwen3-coder", "qwen3-coder", None, QWEN, eagle3("d"), on("0.23.0"), TOOLS, False,
          "qwen-multi-token-tool-parser"),
    Story("new qwen parser", "qwen3-coder", "qwen3-coder", None, QWEN, eagle3("d"), on("0.24.0"), TOOLS, True, None),
    Story("MTP with prefix caching", *Q36, QWEN, MTP, on("0.32.0"), TOOLS, False, CACHE),
    Story("MTP without", *Q36, {**QWEN, "no-enable-prefix-caching": True}, MTP, on("0.32.0", async_scheduling=False),
          TOOLS, True, None),
    Story("strict JSON after thinking, old", *K25, KIMI, MLA, on("0.26.0"), JSON | {"thinking": True}, False, GRAMMAR),
    Story("strict JSON without thinking, old", *K25, KIMI, MLA, on("0.26.0"), JSON, True, None),
    Story("strict JSON after thinking, fixed", *K25, KIMI, MLA, on("0.30.0"), JSON | {"thinking": True}, True, None),
    Story("a forced call is a grammar too", *K25, KIMI, MLA, on("0.26.0"), FORCED | {"thinking": True}, False, GRAMMAR),
    Story("lossy sampling", *K25, OURS, MLA | {"rejection_sample_method": "fly"}, on("0.33.0"), {}, False,
          "lossy-rejection-sampling"),
    Story("lossless sampling", *K25, OURS, MLA | {"rejection_sample_method": "block"}, on("0.33.0"), TOOLS, True, None),
    Story("stop strings with tools", *K25, KIMI, MLA, on("0.32.0"), TOOLS | {"stop": True}, False, STOP),
    Story("stop strings, not streamed", *K25, KIMI, MLA, on("0.32.0"), TOOLS | {"stop": True, "stream": False}, True,
          None),
    Story("stop strings on our parsers", *K25, OURS, MLA, on("0.32.0"), TOOLS | {"stop": True}, True, None),
    Story("auto tools with a format", *K25, OURS, MLA, on("0.32.0"), TOOLS | {"response_format": "json_schema"}, True,
          "auto-tools-with-response-format"),
    Story("the same with a strict tool", *K25, OURS, MLA, on("0.32.0"), TOOLS | JSON | {"strict_tools": True}, True,
          None),
    Story("async placeholders are refuted", *K25, OURS, MLA, on("0.32.0", async_scheduling=True), TOOLS, True, None),
    Story("shifted ids are a warning", *K25, KIMI, MLA, on("0.32.0"), TOOLS, True, "kimi-shifted-special-ids"),
    Story("a bias that no speculating vLLM accepts", *K25, OURS, MLA, on("0.33.0", opt_out=True), REFUSED, False,
          "sampling-refused-by-speculation"),
    Story("the same with tools", *K25, OURS, MLA, on("0.19.1", opt_out=True), TOOLS | REFUSED, False,
          "sampling-refused-by-speculation"),
    Story("penalties are accepted", *K25, OURS, MLA, on("0.33.0"), {"penalties": True}, True, None),
    Story("dynamic draft length", *K25, OURS, MLA | {"num_speculative_tokens_per_batch_size": [[1, 8, 3]]},
          on("0.32.0"), {}, True, "dynamic-draft-length"),
]  # fmt: skip


@pytest.mark.parametrize("story", STORIES, ids=lambda story: story.name)
def test_story(story, shipped, vllm_pools):
    facts = vllm_pools(story.model, story.family, story.version, story.args, story.spec, **story.known)
    policy = compile_policy(facts, shipped, PolicySettings())
    decision = decide(policy, RequestFeatures(story.model, **story.request), None)
    named = [reason.advisory for reason in decision.reasons]
    assert decision.speculative is story.speculative, decision.reasons
    assert not decision.refused
    if story.reason is not None:
        assert story.reason in named
    elif story.speculative:
        assert {r.effect for r in decision.reasons} <= {"warn"}, named


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


def test_guided_fields_are_refused_with_the_way_out(shipped, vllm_pools):
    facts = vllm_pools("m", "kimi-k2", "2.5", OURS, MLA, engine_version="0.32.0")
    decision = decide(compile_policy(facts, shipped, PolicySettings()), RequestFeatures("m", guided=True), None)
    assert decision.refused
    assert "structured_outputs" in decision.reasons[0].summary


def test_what_a_speculating_vllm_refuses_goes_to_the_pool_without_a_drafter_and_not_to_the_opt_out(shipped, vllm_pools):
    facts = vllm_pools("m", "kimi-k2", "2.5", OURS, MLA, engine_version="0.32.0", opt_out=True)
    policy = compile_policy(facts, shipped, PolicySettings())
    for preference in (None, True, False):
        decision = decide(policy, RequestFeatures("m", **REFUSED), preference)
        assert [candidate.pool for candidate in decision.candidates] == ["standard"]
    alone = compile_policy(facts[:1], shipped, PolicySettings())
    assert decide(alone, RequestFeatures("m", **REFUSED), None).refused


@pytest.mark.parametrize("engine", ["sglang", "sim"])
def test_other_engines_take_what_vllm_refuses(shipped, engine):
    facts = [facts_from_engine_args("m", "s", "kimi-k2", "2.6", {}, REMOTE | {"engine": engine})]
    policy = compile_policy(facts, shipped, PolicySettings())
    assert decide(policy, RequestFeatures("m", **REFUSED), None).speculative
