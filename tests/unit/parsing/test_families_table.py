"""The table of families: a model's grammar by what is known of it, and where its outputs start."""

from __future__ import annotations

from typing import Any

import pytest

from serve.parsing.families import FAMILIES, find_grammar, grammars_by_markup, thinking_of

PUBLISHED = {
    "moonshotai/Kimi-K2-Instruct-0905": "kimi_k2",
    "moonshotai/Kimi-K2.6": "kimi_k2",
    "nvidia/Kimi-K2-Thinking-NVFP4": "kimi_k2",
    "moonshotai/Kimi-Linear-48B-A3B-Instruct": "kimi_k2",
    "moonshotai/Kimi-K3": "kimi_k3",
    "Qwen/Qwen3-Coder-480B-A35B-Instruct-FP8": "qwen3_coder",
    "Qwen/Qwen3-Coder-Next": "qwen3_coder",
    "Qwen/Qwen3.5-397B-A17B": "qwen3_coder",
    "Qwen/Qwen3-235B-A22B-Instruct-2507": "hermes",
    "Qwen/Qwen3-8B": "hermes",
    "Qwen/Qwen2.5-72B-Instruct": "hermes",
    "ibm-granite/granite-4.0-h-small": "hermes",
    "zai-org/GLM-4.6": "glm47",
    "zai-org/GLM-4.7-Flash": "glm47",
    "zai-org/GLM-5.2-FP8": "glm47",
    "deepseek-ai/DeepSeek-V3": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3-0324": "deepseek_v3",
    "deepseek-ai/DeepSeek-R1-0528": "deepseek_v3",
    "deepseek-ai/DeepSeek-V3.1-Terminus": "deepseek_v31",
    "deepseek-ai/DeepSeek-V3.2": "deepseek_v32",
    "deepseek-ai/DeepSeek-V4-Flash-0731": "deepseek_v4",
    "deepseek-ai/DeepSeek-V4-Pro-DSpark": "deepseek_v4",
    "deepseek-ai/DeepSeek-V4.1": "deepseek_v41",
    "MiniMaxAI/MiniMax-M2": "minimax_m2",
    "MiniMaxAI/MiniMax-M2.5": "minimax_m2",
    "/weights/MiniMax-M3/": "minimax_m3",
    "openai/gpt-oss-120b": "harmony",
    "stepfun-ai/Step-3.5-Flash": "step3p5",
    "stepfun-ai/Step-5": "step5",
    "XiaomiMiMo/MiMo-V2.5-Pro-FP4": "mimo",
    "inclusionAI/Ling-3-Flash": "ling3",
    "poolside/Laguna-XS.2": "laguna",
    "poolside/laguna-m.1": "laguna",
    "poolside/Laguna-S-2.1-FP8": "laguna_s",
    "meituan-longcat/LongCat-Flash-Lite": "longcat",
    "meituan-longcat/LongCat-Flash-Thinking-2601": "longcat",
    "tencent/Hy3": "hy_v3",
    "google/gemma-4-31B-it": "gemma4",
    "CohereLabs/c4ai-command-r7b-12-2024": "cohere_command3",
    "CohereLabs/command-a-reasoning-08-2025": "cohere_command3",
    "CohereLabs/command-a-plus-05-2026-fp8": "cohere_command4",
    "CohereLabs/North-Mini-Code-1.0-w4a16": "cohere_command4",
    "ByteDance-Seed/Seed-OSS-36B-Instruct": "seed_oss",
    "mistralai/Mistral-Small-3.2-24B-Instruct-2506": "mistral",
    "mistralai/Devstral-Small-2-24B-Instruct-2512": "mistral",
    "mistralai/Magistral-Small-2509": "mistral",
    "mistralai/Ministral-3-14B-Instruct-2512": "mistral",
    "nvidia/NVIDIA-Nemotron-3-Super-120B": "nemotron_v3",
    "nvidia/Llama-3.3-70B-Instruct-FP8": "bare",
    "meta-llama/Llama-4-Maverick-17B-128E-Instruct": "bare",
    "LiquidAI/LFM2.5-1.2B-Instruct": "bare",
    "allenai/Olmo-3.1-32B-Instruct": "bare",
    "ibm-granite/granite-3.3-8b-instruct": "bare",
    "microsoft/Phi-4-mini-instruct": "bare",
}


@pytest.mark.parametrize(("model", "grammar"), PUBLISHED.items())
def test_a_published_name_tells_the_grammar(model: str, grammar: str) -> None:
    assert find_grammar([model], (), ()).grammar == grammar


@pytest.mark.parametrize(
    "model",
    [
        "deepseek-ai/DeepSeek-V3.2-Exp",  # has both histories
        "nvidia/Llama-3_3-Nemotron-Super-49B-v1_5", "deepseek-ai/DeepSeek-R1-Distill-Llama-70B",
        "allenai/Olmo-3-7B-Think",
        "zai-org/GLM-4-9B", "stepfun-ai/step3", "m", "deepseek-ai/DeepSeek-Coder-V2",
    ],
)  # fmt: skip
def test_a_name_of_no_family_tells_nothing(model: str) -> None:
    found = find_grammar([model], (), ())
    assert found.grammar is None
    assert "nor its architecture is known" in found.why


def test_an_architecture_that_families_share_does_not_decide_and_a_name_beside_it_does() -> None:
    shared = find_grammar([], [], ["DeepseekV3ForCausalLM"])
    assert shared.grammar is None
    assert "more than one is left" in shared.why
    assert find_grammar(["DeepSeek-V3.1"], [], ["DeepseekV3ForCausalLM"]).grammar == "deepseek_v31"
    assert find_grammar([], ["deepseek_v3"], ["DeepseekV3ForCausalLM"]).grammar == "deepseek_v3"
    assert find_grammar([], [], ["MiniMaxM2ForCausalLM"]).grammar == "minimax_m2"


def test_evidence_that_contradicts_itself_names_no_grammar_and_says_what_contradicts_what() -> None:
    found = find_grammar(["Kimi-K2.6"], ["hermes"], [])
    assert found.grammar is None
    assert "'Kimi-K2.6' says kimi_k2" in found.why
    assert "'hermes' says hermes" in found.why


def test_a_parser_that_several_families_use_leaves_the_choice_to_the_name() -> None:
    assert find_grammar(["NVIDIA-Nemotron-3-Nano"], ["qwen3_xml"], []).grammar == "nemotron_v3"
    assert find_grammar(["Qwen3-Coder"], ["qwen3_xml"], []).grammar == "qwen3_coder"
    assert find_grammar(["anything"], ["specgate_hermes"], []).grammar == "hermes"


STARTS: list[tuple[str, dict[str, Any], bool]] = [
    ("glm47", {}, True),
    ("glm47", {"enable_thinking": False}, False),
    ("glm47", {"enable_thinking": False, "thinking": True}, True),
    ("deepseek_v31", {}, False),
    ("deepseek_v31", {"enable_thinking": True}, True),
    ("deepseek_v4", {}, True),
    ("deepseek_v4", {"thinking": False}, False),
    ("laguna", {}, False),
    ("laguna_s", {}, True),
    ("longcat", {}, False),
    ("longcat", {"enable_thinking": True}, True),
    ("laguna_s", {"enable_thinking": False}, False),
    ("minimax_m2", {"enable_thinking": False}, True),
    ("minimax_m3", {}, False),
    ("minimax_m3", {"thinking_mode": "enabled"}, True),
    ("minimax_m3", {"thinking_mode": "adaptive"}, False),
    ("minimax_m3", {"thinking_mode": "disabled"}, False),
    ("kimi_k3", {}, True),
    ("kimi_k3", {"thinking": False, "enable_thinking": True}, False),
    ("harmony", {"reasoning_effort": "high"}, False),
    ("step3p5", {"enable_thinking": False}, True),
    ("nemotron_v3", {}, True),
    ("nemotron_v3", {"enable_thinking": False}, False),
    ("mimo", {"enable_thinking": True}, False),
    ("seed_oss", {}, True),
    ("seed_oss", {"thinking_budget": 0}, True),
    ("mistral", {}, False),
    ("cohere_command3", {"reasoning": True}, False),
    ("cohere_command4", {}, True),
    ("cohere_command4", {"reasoning": False}, False),
    ("cohere_command4", {"reasoning_effort": "none"}, False),
    ("gemma4", {"enable_thinking": True}, False),
    ("hy_v3", {}, False),
    ("hy_v3", {"reasoning_effort": "no_think"}, False),
    ("hy_v3", {"reasoning_effort": "low"}, True),
    ("kimi_k2", {}, False),
    ("kimi_k2", {"thinking": True}, True),
]


@pytest.mark.parametrize(("grammar", "arguments", "inside"), STARTS)
def test_where_an_output_starts_follows_from_the_templates_arguments(
    grammar: str, arguments: dict[str, Any], inside: bool
) -> None:
    assert thinking_of(grammar).starts_inside(arguments) is inside


def test_a_pools_default_stands_where_no_argument_says_otherwise() -> None:
    assert thinking_of("deepseek_v31").starts_inside({}, default=True)
    assert not thinking_of("glm47").starts_inside({}, default=False)
    assert not thinking_of("glm47").starts_inside({"thinking": False}, default=True)


def test_a_model_that_decides_for_itself_may_think_and_one_without_a_switch_always_does() -> None:
    assert thinking_of("minimax_m3").thinks({})
    assert not thinking_of("minimax_m3").thinks({"thinking_mode": "disabled"})
    assert thinking_of("harmony").thinks({})
    assert thinking_of("minimax_m2").thinks({}, default=False)
    assert not thinking_of(None).thinks({})


@pytest.mark.parametrize(
    ("leak", "first"),
    [
        ("<|tool_call_begin|>functions.f:0<|tool_call_argument_begin|>{}", "kimi_k2"),
        ('<|open|>tools<|sep|><|open|>call tool="f" index="1"<|sep|>', "kimi_k3"),
        ("<|channel|>commentary to=functions.f <|constrain|>json<|message|>{}", "harmony"),
        ("<tool_call>f<arg_key>k</arg_key>", "glm47"),
        ("<tool_call>f</tool_call>", "glm47"),
        ("<tool_call>\n<function=f>", "qwen3_coder"),
        ('<tool_call>\n{"name": "f"', "qwen3_coder"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>function<｜tool▁sep｜>f", "deepseek_v3"),
        ("<｜tool▁calls▁begin｜><｜tool▁call▁begin｜>f<｜tool▁sep｜>{}", "deepseek_v31"),
        ('<｜DSML｜function_calls>\n<｜DSML｜invoke name="f">', "deepseek_v32"),
        ('<|DSML|tool_calls>\n<|DSML|invoke name="f">', "deepseek_v4"),
        ('<｜DSML｜ calls>\n<｜DSML｜ invoke name="f">', "deepseek_v41"),
        ('<minimax:tool_call>\n<invoke name="f">', "minimax_m2"),
        (']<]minimax[>[<tool_call>\n]<]minimax[>[<invoke name="f">', "minimax_m3"),
        ("<tool_calls:opensource>\n<tool_call:opensource>f<tool_sep:opensource>", "hy_v3"),
    ],
)
def test_the_opener_of_a_leaked_call_tells_its_format(leak: str, first: str) -> None:
    assert grammars_by_markup(leak)[0] == first


def test_each_family_has_a_grammar_of_its_own() -> None:
    assert len({family.grammar for family in FAMILIES}) == len(FAMILIES)
