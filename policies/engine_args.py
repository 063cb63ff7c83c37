"""Derives the facts about a pool from the configuration and its engine's arguments."""

import re
from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from policies.errors import PolicyError
from policies.facts import PoolFacts, Scalar
from policies.stated_facts import UNKNOWN, checked
from policies.vllm_args import facts_of_vllm
from policies.vllm_options import full_names

# GDN, KDA, Mamba and other recurrent layers; a config that forgets `hybrid: true` must not lose those advisories.
_HYBRID = re.compile(
    r"qwen3?-?3\.[5-9]|qwen3_[5-9](?![\db])|qwen-?3-?(coder-)?next|kimi-(linear|k3)|nemotron-?(h\b|3\b|nano-\d+b-v2)"
    r"|granite-?4|falcon-?h1|lfm-?2|minimax-(m1|(text|vl)-01)|\b[lr]ing-2\.[5-9]|bailing|[zjb]amba|plamo-?3|glm-5\.3-flash|olmo-?hybrid"
    r"|minicpm-?v-?4[._]6"
)
_VARIANTS = (("nvfp4", ("nvfp4", "modelopt_fp4")), ("fp8", ("fp8",)), ("awq", ("awq",)), ("gptq", ("gptq",)))
# Opt-in features: off unless mentioned, also on an engine that we did not start.
_OPT_IN: dict[str, Scalar] = {
    "rejection_sample_method": "standard",
    "dynamic_draft_length": False,
    "disable_lookahead_block_hashes": False,
    "kv_cache_dtype": "auto",
    "kv_connector": "none",
    "pipeline_parallel_size": 1,
    "data_parallel_size": 1,
    "enable_expert_parallel": False,
    "all2all_backend": "none",
    "structured_outputs_backend": "auto",
    "disable_any_whitespace": False,
    "decode_context_parallel_size": 1,
    "enable_lora": False,
    "enable_prompt_embeds": False,
    "enable_adaptive_verification": False,
    "cudagraph_mode": "default",
    "drafter_context_shorter": False,
    "speculative_adaptive": False,
    "enable_custom_logit_processor": False,
    "enable_dp_attention": False,
    "platform": "cuda",
    "enable_hierarchical_cache": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}


def facts_from_engine_args(
    model: str,
    pool: str,
    family: str | None,
    version: str | None,
    engine_args: Mapping[str, Any],
    overrides: Mapping[str, Any],
    env: Mapping[str, str] | None = None,
) -> PoolFacts:
    """Derives facts from the configuration; nothing is looked up in a running engine.

    Args:
        model: The configuration's name of the model.
        pool: The configuration's name of the pool.
        family: Model family.
        version: Version within the family.
        engine_args: vLLM's own, however they are written. Ignored unless the pool's kind is `vllm`.
        overrides: Facts stated by the operator, by their names in `PoolFacts`; they outweigh derived ones, and
            `settings` are merged.
        env: Environment variables of the engine's process, some of which choose for it.

    Raises:
        PolicyError: An override names no fact or can't be its value, or an engine argument can't be read.
    """
    stated = checked(f"{model}/{pool}", overrides)
    args = _args(f"{model}/{pool}", engine_args) if stated.get("kind", "vllm") == "vllm" else {}
    names = " ".join(map(str, (model, family, version, args.get("model", "")))).lower()
    known_as = f"{names} {family}-{version}".lower()
    by_name = bool(_HYBRID.search(known_as) or _HYBRID.search(known_as.replace("_", "-")))  # or by vLLM's model types
    hybrid = by_name or bool(stated.get("hybrid"))
    derived = PoolFacts(
        model,
        pool,
        kind=stated.get("kind", "vllm"),
        family=family,
        model_version=version,
        quantization=variant_of(f"{names} {args.get('quantization', '')}"),
        settings=_OPT_IN,
    )
    if derived.kind == "vllm":
        found = facts_of_vllm(f"{model}/{pool}", args, stated, env or {}, hybrid=hybrid)
        derived = replace(derived, **{**found, "settings": {**_OPT_IN, **found["settings"]}})
    elif derived.kind == "sim":
        derived = replace(derived, engine="sim")
    elif derived.kind == "remote" and "method" not in overrides:
        derived = replace(derived, method=UNKNOWN)  # an engine that others started may draft
    merged = {
        **stated,
        "hybrid": hybrid,
        "proven": frozenset(stated.get("proven", ())),
        "settings": {**derived.settings, **stated.get("settings", {})},
    }
    return _with_text_versions(replace(derived, **merged))


def _args(where: str, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return full_names(engine_args)
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error


def variant_of(text: str) -> str:
    """Returns the usual name of the weights' variant; `none` if no name mentions one."""
    return next((name for name, marks in _VARIANTS if any(mark in text for mark in marks)), "none")


def _with_text_versions(facts: PoolFacts) -> PoolFacts:
    """Makes versions strings: YAML reads `version: 2.6` as a number."""
    texts: dict[str, Any] = {
        name: str(value) for name in ("model_version", "engine_version") if (value := getattr(facts, name)) is not None
    }
    return replace(facts, **texts)
