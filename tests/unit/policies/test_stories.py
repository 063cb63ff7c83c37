"""Each story of the advisories: a configuration and a request go in, the decision and its reason come out."""

from typing import Any, NamedTuple

import pytest

from policies import PolicySettings, RequestFeatures, compile_policy, decide


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
    Story("another drafter of the same name", *K26, OURS, eagle3("nvidia/Kimi-K2.6-Eagle3"), on("0.32.0"), TOOLS, True,
          None),
    Story("a folder does not tell them apart", *K26, OURS, eagle3("/models/Kimi-K2.6-Eagle3"), on("0.32.0"), TOOLS,
          False, "kimi-k2.6-original-eagle3-drafter"),
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
    Story("MTP with prefix caching, nothing makes up for it", *Q36, QWEN, MTP, on("0.28.0"), TOOLS, False, CACHE),
    Story("the proof of a class does not lift it", *Q36, QWEN, MTP, on("0.28.0", proven=["tools_auto"]), TOOLS, False,
          CACHE),
    Story("MTP with prefix caching, fixed in code", *Q36, QWEN, MTP, on("0.32.0"), TOOLS, False, f"{CACHE}-checkpoint"),
    Story("a proof lifts the suspicion", *Q36, QWEN, MTP, on("0.32.0", runner="v2", proven=["tools_auto"]), TOOLS, True,
          f"{CACHE}-checkpoint"),
    Story("MTP with prefix caching, by lookahead", *Q36, QWEN, MTP, on("0.33.0", runner="v2"), TOOLS, False,
          f"{CACHE}-lookahead"),
    Story("lookahead switched off", *Q36, QWEN, MTP | {"disable_lookahead_block_hashes": True}, on("0.33.0"), TOOLS,
          False, f"{CACHE}-checkpoint"),
    Story("lookahead is off with a KV connector", *Q36,
          QWEN | {"kv-transfer-config": '{"kv_connector": "NixlConnector"}'}, MTP, on("0.33.0"), TOOLS, False,
          f"{CACHE}-checkpoint"),
    Story("free text with MTP and a prefix cache", *Q36, QWEN, MTP, on("0.33.0"), {}, True, f"{CACHE}-plain"),
    Story("MTP without", *Q36, {**QWEN, "no-enable-prefix-caching": True}, MTP, on("0.32.0", async_scheduling=False),
          TOOLS, True, None),
    Story("strict JSON after thinking, old", *K25, KIMI, MLA, on("0.26.0"), JSON | {"thinking": True}, False, GRAMMAR),
    Story("strict JSON without thinking, old", *K25, KIMI, MLA, on("0.26.0"), JSON, False,
          "kimi-k2.6-eagle3-structured-0.26"),
    Story("strict JSON with a draft model", *K25, OURS, {"method": "draft_model", "model": "d",
          "num_speculative_tokens": 3}, on("0.20.2"), JSON, True, None),
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
    Story("TurboQuant's cache", *K25, OURS | {"kv-cache-dtype": "turboquant_k8v4"}, MLA, on("0.33.0"), TOOLS, False,
          "turboquant-kv-with-speculation"),
    Story("another cache type", *K25, OURS | {"kv-cache-dtype": "fp8"}, MLA, on("0.33.0"), TOOLS, True, None),
    Story("prompt log-probabilities with MTP", "glm-5", "glm-5", None, {}, MTP, on("0.28.0"),
          {"prompt_logprobs": True, "response_format": "json_object"}, False, "prompt-logprobs-with-mtp"),
    Story("prompt log-probabilities of free text", "glm-5", "glm-5", None, {}, MTP, on("0.28.0", opt_out=True),
          {"prompt_logprobs": True}, False, "prompt-logprobs-with-mtp"),
    Story("log-probabilities of the answer", "glm-5", "glm-5", None, {}, MTP, on("0.28.0", runner="v2"),
          {"logprobs": True}, True, None),
    Story("drafts in pipeline stages, scheduled synchronously", "qwen3", "qwen3", None,
          {"pipeline-parallel-size": 2, "async-scheduling": False}, eagle3("d"), on("0.33.0"), {}, False,
          "sync-pipeline-drafts"),
    Story("drafts in pipeline stages, scheduled asynchronously", "qwen3", "qwen3", None,
          {"pipeline-parallel-size": 2}, eagle3("d"), on("0.33.0", proven=["any"]), {}, True,
          "mtp-with-pipeline-parallel"),
    Story("a bound on thinking that nobody keeps", "glm-5", "glm-5", None, {}, MTP, on("0.19.1", opt_out=True),
          {"thinking": True, "thinking_budget": True}, False, "thinking-budget-not-kept"),
    Story("a bound on thinking that is kept again", "glm-5", "glm-5", None, {}, MTP, on("0.32.0"),
          {"thinking": True, "thinking_budget": True}, True, None),
    Story("MTP over pipeline stages", "glm-5", "glm-5", None, {"pipeline-parallel-size": 2}, MTP, on("0.33.0"), {},
          False, "mtp-with-pipeline-parallel"),
    Story("MiMo with async scheduling", "mimo-v2", "mimo-v2", None, {"async-scheduling": True}, MTP, on("0.30.0"),
          TOOLS, False, "mimo-mtp-async"),
    Story("MiMo without", "mimo-v2", "mimo-v2", None, {"no-async-scheduling": True}, MTP, on("0.30.0"), TOOLS, True,
          None),
    Story("images on an old async engine", *K25, OURS | {"async-scheduling": True}, MLA, on("0.23.0"), {"images": True},
          False, "async-placeholder-crash"),
    Story("text on it", *K25, OURS | {"async-scheduling": True}, MLA, on("0.23.0"), {}, True, None),
    Story("images on a newer engine", *K25, OURS, MLA, on("0.26.0"), {"images": True}, True, None),
    Story("DFlash on a hybrid", *Q36, QWEN, eagle3("d") | {"method": "dflash"}, on("0.32.0"), TOOLS, False,
          "dflash-prefix-cache-on-hybrid"),
    Story("DFlash on 0.33", *Q36, QWEN, eagle3("d") | {"method": "dflash"}, on("0.33.0"), TOOLS, True, None),
    Story("DeepSeek's counting parser", "ds", "deepseek-v3.1", None, {"tool-call-parser": "deepseek_v31"}, MTP,
          on("0.33.0"), TOOLS, False, "deepseek-counting-tool-parser"),
    Story("the same, not streamed", "ds", "deepseek-v3.1", None, {"tool-call-parser": "deepseek_v31"}, MTP,
          on("0.33.0"), TOOLS | {"stream": False}, True, None),
    Story("DeepSeek V3.2's parser", "ds", "deepseek-v3.2", None, {"tool-call-parser": "deepseek_v32"}, MTP,
          on("0.33.0"), TOOLS, True, None),
    Story("GLM's old parser", "glm-4.7", "glm-4.7", None, {"tool-call-parser": "glm47"}, MTP, on("0.19.1"), TOOLS,
          False, "glm-multi-token-tool-parser"),
    Story("GLM's new parser", "glm-4.7", "glm-4.7", None, {"tool-call-parser": "glm47"}, MTP, on("0.20.2"), TOOLS, True,
          None),
    Story("MiniMax's old parser", "mm", "minimax-m2", None, {"tool-call-parser": "minimax_m2"}, eagle3("d"),
          on("0.17.1"), TOOLS, False, "old-multi-token-tool-parsers"),
    Story("MiniMax's parser from 0.18 on", "mm", "minimax-m2", None, {"tool-call-parser": "minimax_m2"}, eagle3("d"),
          on("0.18.0"), TOOLS, True, None),
    Story("K2.6 in a container that calls itself K2.5", *K25, OURS, ORIGINAL, on("0.32.0"), TOOLS, False,
          "kimi-k2.6-original-eagle3-drafter"),
    Story("the old Qwen parser on MiMo", "mimo-v2", "mimo-v2", None, {"tool-call-parser": "qwen3_xml",
          "no-async-scheduling": True}, MTP, on("0.22.0"), TOOLS, False, "qwen-multi-token-tool-parser"),
    Story("the counting parser under another family", "m", "moonlight", None, KIMI, eagle3("d"), on("0.19.1"), TOOLS,
          False, COUNTING),
    Story("hermes before 0.19", "qwen3-8b", "qwen3", None, {"tool-call-parser": "hermes"}, eagle3("d"), on("0.18.1"),
          TOOLS, False, "hermes-multi-token-tool-parser"),
    Story("hermes from 0.19 on", "qwen3-8b", "qwen3", None, {"tool-call-parser": "hermes"}, eagle3("d"), on("0.19.1"),
          TOOLS, True, "hermes-stray-tool-call-tag"),
    Story("stop strings with GLM's parsers", "glm-4.7", "glm-4.7", None, {"tool-call-parser": "glm47",
          "reasoning-parser": "glm45"}, MTP, on("0.32.0"), TOOLS | {"stop": True}, False, STOP),
    Story("stop strings on an older vLLM", *K25, KIMI, MLA, on("0.23.0"), TOOLS | {"stop": True}, False, STOP),
    Story("stop strings without a parser", "m", "llama", None, {}, eagle3("d"), on("0.32.0"), {"stop": True}, True,
          None),
    Story("EAGLE over pipeline stages, with tools", *K25, OURS | {"pipeline-parallel-size": 2}, MLA, on("0.33.0"),
          TOOLS, False, "mtp-with-pipeline-parallel"),
    Story("shifted ids since transformers 5 is required", *K25, KIMI, MLA, on("0.24.0"), TOOLS, True,
          "kimi-shifted-special-ids"),
    Story("FSM errors of 0.23", *K25, OURS, {"method": "draft_model", "model": "d", "num_speculative_tokens": 3},
          on("0.23.0"), JSON, False, "grammar-fsm-errors-0.27"),
    Story("five drafts on a hybrid", *Q36, QWEN | {"no-enable-prefix-caching": True},
          MTP | {"num_speculative_tokens": 5}, on("0.33.0"), TOOLS, False, "gdn-long-drafts"),
    Story("four drafts on a hybrid", *Q36, QWEN | {"no-enable-prefix-caching": True},
          MTP | {"num_speculative_tokens": 4}, on("0.33.0", async_scheduling=False), TOOLS, True, None),
    Story("a KV connector and MTP", "glm-5", "glm-5", None,
          {"kv-transfer-config": {"kv_connector": "NixlConnector"}, "tool-call-parser": "specgate_glm47"}, MTP,
          on("0.24.0"), TOOLS, False, "nixl-lookahead-slots"),
    Story("a KV connector on 0.25.1", "glm-5", "glm-5", None,
          {"kv-transfer-config": {"kv_connector": "NixlConnector"}, "tool-call-parser": "specgate_glm47"}, MTP,
          on("0.25.1"), TOOLS, True, None),
    Story("DeepEP's low latency with MTP", "glm-5", "glm-5", None, {"all2all-backend": "deepep_low_latency"}, MTP,
          on("0.33.0"), TOOLS, False, "deepep-low-latency-mtp"),
    Story("Gemma's drafts mix sequences", "gemma", "gemma-4", None, {"tool-call-parser": "none"}, MTP, on("0.23.0"),
          TOOLS, False, "gemma4-mtp"),
    Story("log-probabilities near the end of the context", "glm-5", "glm-5", None, {"no-async-scheduling": True}, MTP,
          on("0.19.1"), {"logprobs": True, **JSON}, False, "logprobs-near-max-length"),
    Story("Step's parser before the rewrite", "step", "step-3.5", None, {"tool-call-parser": "step3p5"}, MTP,
          on("0.30.0"), TOOLS, False, "old-multi-token-tool-parsers"),
    Story("Gemma's rewritten parser", "gemma", "gemma-4", None, {"tool-call-parser": "gemma4"}, eagle3("d"),
          on("0.24.0"), TOOLS, True, None),
    Story("hermes of vLLM", "qwen3-8b", "qwen3", None, {"tool-call-parser": "hermes"}, eagle3("d"), on("0.33.0"), TOOLS,
          True, "hermes-stray-tool-call-tag"),
    Story("gpt-oss in streams", "gpt-oss-120b", "gpt-oss", None, {}, eagle3("d"), on("0.33.0"), TOOLS, False,
          "harmony-multi-channel-deltas"),
    Story("one backend for all schemas", *K25, OURS | {"structured-outputs-config": {"backend": "xgrammar"}}, MLA,
          on("0.33.0"), JSON, True, None),
    Story("the first schema decides the backend", *K25, OURS, MLA, on("0.33.0"), JSON, True,
          "two-structured-backends-in-one-engine"),
    Story("K2.6 and a grammar before 0.27", *K26, OURS, MLA, on("0.24.0"), JSON, False,
          "kimi-k2.6-eagle3-structured-0.26"),
    Story("K2.6 and a grammar on 0.30", *K26, OURS, MLA, on("0.30.0"), JSON, True, None),
    Story("outlines on Kimi", *K26, OURS | {"structured-outputs-config.backend": "outlines"}, MLA, on("0.30.0"), JSON,
          True, "kimi-other-grammar-backends"),
    Story("FSM errors of 0.28", *K25, OURS, MLA, on("0.28.0"), JSON, False, "grammar-fsm-errors-0.27"),
    Story("FSM errors are gone in 0.29", *K25, OURS, MLA, on("0.29.0"), JSON, True, None),
    Story("endless white space", "glm-5", "glm-5", None, {}, MTP, on("0.32.0"), JSON | {"thinking": True}, True,
          "grammar-with-speculation-residual"),
    Story("penalties kill engines that extract hidden states", "qwen3-8b", "qwen3", None, {},
          {"method": "extract_hidden_states", "num_speculative_tokens": 1}, on("0.19.1"), {"penalties": True}, False,
          "cve-2026-44223"),
    Story("penalties are accepted", *K25, OURS, MLA, on("0.33.0"), {"penalties": True}, True, None),
    Story("dynamic draft length", *K25, OURS, MLA | {"num_speculative_tokens_per_batch_size": [[1, 8, 3]]},
          on("0.32.0"), {}, True, "dynamic-draft-length"),
    Story("R0 from the hub's cache", *K26, OURS, eagle3("~/hub/models--lightseekorg--kimi-k2.6-eagle3/snapshots/4f2a"),
          on("0.30.0"), TOOLS, False, "kimi-k2.6-original-eagle3-drafter"),
    Story("nvidia's drafter from there", *K26, OURS, eagle3("~/hub/models--nvidia--Kimi-K2.6-Eagle3/snapshots/4f2a"),
          on("0.30.0"), TOOLS, True, None),
    Story("another size of the right drafter", *K26, OURS, eagle3("org/kimi-k2.6-eagle3-mla-fp8"), on("0.30.0"), TOOLS,
          True, None),
    Story("a release candidate lacks the release's fix", *K26, OURS, MLA, on("0.27.0rc1"), JSON, False,
          "kimi-k2.6-eagle3-structured-0.26"),
    Story("free text of an agent's conversation", *Q36, QWEN, ngram(8, 10), on("0.26.0"), {"tool_history": True}, False,
          STATE),
    Story("free text of a first turn", *Q36, QWEN, ngram(8, 10), on("0.26.0"), {}, True, None),
    Story("suffix drafts on a hybrid", *Q36, QWEN, {"method": "suffix"}, on("0.31.0"), TOOLS, False, STATE),
    Story("suffix drafts where no state can break", "qwen3-8b", "qwen3", None, QWEN, {"method": "suffix"}, on("0.31.0"),
          TOOLS, True, None),
    Story("the opt-out shares the cache", *Q36, QWEN, MTP, on("0.28.0", opt_out=True), TOOLS, False, CACHE),
    Story("synchronous scheduling is no cure", *Q36, QWEN | {"no-async-scheduling": True}, MTP, on("0.28.0"), TOOLS,
          False, CACHE),
    Story("a proof for tools does not vouch for JSON", *Q36, QWEN, MTP, on("0.30.0", proven=["tools"]), TOOLS | JSON,
          False, f"{CACHE}-checkpoint"),
    Story("DSpark on a hybrid", *Q36, QWEN, eagle3("d") | {"method": "dspark"}, on("0.30.0"), JSON, False,
          "dflash-prefix-cache-on-hybrid"),
    Story("the opt-out keeps to the grammar", *K25, KIMI, MLA, on("0.26.0", opt_out=True), JSON | {"thinking": True},
          False, GRAMMAR),
    Story("a single call is a grammar too", *K25, KIMI, MLA, on("0.26.0"),
          TOOLS | {"thinking": True, "parallel_tool_calls": False}, False, GRAMMAR),
    Story("a free choice is none", *K25, KIMI, MLA, on("0.26.0"), TOOLS | {"thinking": True}, True, None),
    Story("stale counts of a V1 hybrid", *Q36, QWEN, eagle3("d") | {"method": "draft_model"}, on("0.30.0", runner="v1"),
          TOOLS, False, "async-hybrid-accepted-counts"),
    Story("no such counts without async scheduling", *Q36, QWEN | {"no-async-scheduling": True},
          eagle3("d") | {"method": "draft_model"}, on("0.30.0", runner="v1"), TOOLS, True, None),
    Story("reasoning that is shown", *K25, OURS, MLA, on("0.30.0"), JSON | {"thinking": True}, True, None),
    Story("hidden reasoning and a grammar", *K25, OURS, MLA, on("0.33.0"),
          JSON | {"thinking": True, "include_reasoning": False}, True, "hidden-reasoning-with-grammar"),
    Story("white space that ends", "glm-5", "glm-5", None, {"structured-outputs-config.disable_any_whitespace": True},
          MTP, on("0.32.0", runner="v2"), JSON | {"thinking": True}, True, None),
    Story("ngram_gpu with a grammar on V1", "qwen3-8b", "qwen3", None, {}, ngram(8) | {"method": "ngram_gpu"},
          on("0.31.0"), JSON, False, "ngram-gpu-with-grammar"),
    Story("ngram_gpu with a grammar on V2", "qwen3-8b", "qwen3", None, {}, ngram(8) | {"method": "ngram_gpu"},
          on("0.33.0"), JSON, True, None),
    Story("hermes, not streamed", "qwen3-8b", "qwen3", None, {"tool-call-parser": "hermes"}, eagle3("d"), on("0.33.0"),
          TOOLS | {"stream": False}, True, None),
    Story("gpt-oss, not streamed", "gpt-oss-120b", "gpt-oss", None, {}, eagle3("d"), on("0.33.0"),
          TOOLS | {"stream": False}, True, None),
    Story("EAGLE over pipeline stages", "glm-5", "glm-5", None, {"pipeline-parallel-size": 2}, eagle3("d"),
          on("0.33.0"), {}, False,
          "mtp-with-pipeline-parallel"),
    Story("Gemma's parser before the rewrite", "gemma", "gemma-4", None, {"tool-call-parser": "gemma4"}, eagle3("d"),
          on("0.23.0"), TOOLS, False, "old-multi-token-tool-parsers"),
    Story("stop strings with DeepSeek's parsers", "ds", "deepseek-v3.1", None,
          {"tool-call-parser": "deepseek_v31", "reasoning-parser": "deepseek_r1"}, eagle3("d"), on("0.33.0"),
          TOOLS | {"stop": True}, False, STOP),
    Story("stop strings with hermes and a reasoning parser", "r1-distill", "llama-3", None,
          {"tool-call-parser": "hermes", "reasoning-parser": "deepseek_r1"}, eagle3("d"), on("0.26.0"),
          {"thinking": True, "stream": True, "stop": True}, False, STOP),
    Story("stop strings cut the thinking of an older vLLM", "qwen3-8b", "qwen3", None, {"reasoning-parser": "qwen3"},
          eagle3("d"), on("0.19.1"), {"thinking": True, "stream": True, "stop": True}, False, STOP),
    Story("the same without stop strings", "qwen3-8b", "qwen3", None, {"reasoning-parser": "qwen3"}, eagle3("d"),
          on("0.19.1"), {"thinking": True, "stream": True}, True, None),
    Story("the old Qwen parser on Nemotron, its cache off", "nemotron", "nemotron-h", None,
          {"tool-call-parser": "qwen3_coder", "no-enable-prefix-caching": True}, MTP, on("0.19.1"), TOOLS, False,
          "qwen-multi-token-tool-parser"),
    Story("MiMo with async scheduling, free text", "mimo-v2", "mimo-v2", None, {"async-scheduling": True}, MTP,
          on("0.30.0"), {}, False, "mimo-mtp-async"),
    Story("R0 in capitals, with its owner", *K26, OURS, eagle3("lightseekorg/Kimi-K2.6-Eagle3"), on("0.30.0"), TOOLS,
          False, "kimi-k2.6-original-eagle3-drafter"),
    Story("R0 with fewer bits", *K26, OURS, eagle3("someone/kimi-k2.6-eagle3-fp8"), on("0.30.0"), TOOLS, False,
          "kimi-k2.6-original-eagle3-drafter"),
    Story("R0's cure with fewer bits", *K26, OURS, eagle3("someone/kimi-k2.6-eagle3-mla-mxfp8"), on("0.30.0"), TOOLS,
          True, None),
    Story("R0 with one draft a step", *K26, OURS, ORIGINAL | {"num_speculative_tokens": 1}, on("0.30.0"), TOOLS, False,
          "kimi-k2.6-original-eagle3-drafter"),
    Story("R0 under a served name", "prod-chat", "kimi-k2", None, OURS | {"model": "/model_files/h20/Kimi-K2.5"},
          ORIGINAL, on("0.32.0"), FORCED, False, "kimi-k2.6-original-eagle3-drafter"),
    Story("R1: the drafter of K2-Thinking under K2.5", *K25, OURS, eagle3("nvidia/Kimi-K2.5-Thinking-Eagle3"),
          on("0.32.0"), TOOLS, False, "kimi-k2.5-thinking-drafter"),
    Story("R1: where it belongs", "Kimi-K2-Thinking-NVFP4", "kimi-k2", "2", OURS,
          eagle3("nvidia/Kimi-K2.5-Thinking-Eagle3"), on("0.32.0"), TOOLS, True, None),
    Story("R1: nobody says which K2 it is", "kimi", "kimi-k2", None, OURS,
          eagle3("nvidia/Kimi-K2.5-Thinking-Eagle3"), on("0.32.0"), TOOLS, False, "kimi-k2.5-thinking-drafter"),
    Story("R2 where nobody measured it: a dense Qwen3-Coder", "qwen3-coder", "qwen3-coder", None, QWEN, ngram(2, 4),
          on("0.26.0"), TOOLS, True, None),
    Story("R2 under a name that hides the hybrid's", "prod-agent", "qwen3", None,
          QWEN | {"model": "/weights/Qwen3.6-35B-A3B-FP8"}, ngram(2, 4), on("0.19.1"), TOOLS, False, LOW),
    Story("eight drafts on Kimi K3, as its recipe has them", "k3", "kimi-k3", None, {"no-enable-prefix-caching": True},
          eagle3("Kimi-K3-DSpark") | {"method": "dspark", "num_speculative_tokens": 8}, on("0.33.0"), {}, True, None),
    Story("Qwen3.8-Flash-Next spoils the second prompt of a step", "Qwen3.8-Flash-Next", "qwen3.8-flash", None, {}, MTP,
          on("0.33.0"), {}, False, "qwen3.8-flash-mtp-prefill"),
    Story("Qwen3.8 of another architecture does not", "Qwen3.8-27B", "qwen3.8", None,
          {"no-enable-prefix-caching": True}, MTP, on("0.33.0"), {}, True, None),
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
