"""Facts of a pool that its engine's command line tells. What the line leaves open is unknown, never guessed."""

from collections.abc import Mapping
from dataclasses import replace
from typing import Any

from packaging.version import Version

from policies.command_line import EngineCommand
from policies.engine_args import chosen_runner, default_runner, facts_from_engine_args, falls_back_to_v1
from policies.facts import TOLD, UNKNOWN, PoolFacts, Scalar, method_of
from policies.model_families import NamedModel, model_of, short_name, variant_of
from policies.vllm_options import full_names

MODEL, POOL = "model", "engine"
_NO_MODEL = NamedModel("", None, None)
_OWN_HEAD = frozenset({"eagle", "mtp"})  # SGLang's EAGLE without a drafter is the model's own head
_CACHE_OPTIONS = frozenset({"enable_prefix_caching", "no_enable_prefix_caching", "disable_radix_cache"})
_SCHEDULING_OPTIONS = frozenset({"async_scheduling", "no_async_scheduling", "disable_overlap_schedule"})
_OLD_MEMBERS = {
    "speculative_model": "model",
    "num_speculative_tokens": "num_speculative_tokens",
    "ngram_prompt_lookup_max": "prompt_lookup_max",
    "ngram_prompt_lookup_min": "prompt_lookup_min",
}
_OF_OLD_ENGINES = ("speculative_model", "use_v2_block_manager", "num_scheduler_steps")  # before the V1 engine
# Options of SGLang, with their other names, that are facts or settings of the same meaning as vLLM's.
_SGLANG_SETTINGS: Mapping[str, tuple[str, ...]] = {
    "tensor_parallel_size": ("tp", "tp_size", "tensor_parallel_size"),
    "pipeline_parallel_size": ("pp", "pp_size", "pipeline_parallel_size"),
    "data_parallel_size": ("dp", "dp_size", "data_parallel_size"),
    "kv_cache_dtype": ("kv_cache_dtype",),
    "page_size": ("page_size",),
    "mamba_radix_cache_strategy": ("mamba_radix_cache_strategy", "mamba_scheduler_strategy"),
    "speculative_adaptive": ("speculative_adaptive",),
    "speculative_accept_threshold_single": ("speculative_accept_threshold_single",),
    "speculative_accept_threshold_acc": ("speculative_accept_threshold_acc",),
    "enable_custom_logit_processor": ("enable_custom_logit_processor",),
    "enable_lora": ("enable_lora",),
    "enable_dp_attention": ("enable_dp_attention",),
    "decode_context_parallel_size": ("dcp_size", "decode_context_parallel_size"),
    "enable_hierarchical_cache": ("enable_hierarchical_cache", "enable_hicache"),
    "kv_connector": ("disaggregation_mode",),
    "all2all_backend": ("moe_a2a_backend",),
}  # fmt: skip
# Settings that options decide which bear another name.
_DECIDED_BY: Mapping[str, tuple[str, ...]] = {
    **_SGLANG_SETTINGS,
    "kv_connector": ("kv_transfer_config", "kv_offloading_size", "kv_offloading_backend", "disaggregation_mode"),
    "enable_dp_attention": ("enable_dp_attention", "attn_dp_size", "attention_data_parallel_size"),
    "enable_lora": ("enable_lora", "lora_paths"),
    "enable_expert_parallel": ("enable_expert_parallel", "ep", "ep_size", "expert_parallel_size"),
    "structured_outputs_backend": ("structured_outputs_config",),
    "disable_any_whitespace": ("structured_outputs_config",),
    "cudagraph_mode": ("compilation_config",),
    "drafter_context_shorter": ("speculative_config", "max_model_len"),
    "dynamic_draft_length": ("speculative_config",),
    "rejection_sample_method": ("speculative_config",),
    "enable_adaptive_verification": ("speculative_config",),
}


_DRAFTER = frozenset({"speculative_config.model", "spec_model"})


def facts_of_command(command: EngineCommand, stated: Mapping[str, Any] | None = None) -> PoolFacts:
    """Returns the facts that a command line tells. Stated facts, by their names in `PoolFacts`, outweigh the line's.

    Raises:
        PolicyError: An option can't be read, or a stated fact is none.
    """
    named = model_of(command.model) if command.model else None
    found = _vllm(command, named) if command.engine == "vllm" else _sglang(command, named)
    if command.more or command.config is not None:
        found = _with_more(command, found)
    found = replace(found, settings={name: found.settings[name] for name in found.settings if not _open(command, name)})
    if not stated:
        return found
    given = facts_from_engine_args(MODEL, POOL, None, None, {}, {"kind": "remote", "method": "none", **stated})
    changes: dict[str, Any] = {name: getattr(given, name) for name in stated if name != "settings"}
    settings = {**found.settings, **{name: given.settings[name] for name in stated.get("settings", {})}}
    return replace(found, **{**changes, "settings": settings})


def stated_by(command: EngineCommand) -> dict[str, Any]:
    """Returns what a command line tells as the `facts` of a remote pool; what they leave out it does not tell.

    Raises:
        PolicyError: An option can't be read.
    """
    found = facts_of_command(command)
    assumed = facts_from_engine_args(MODEL, POOL, None, None, {}, {"kind": "remote", "method": "none"}).settings
    facts = {name: value for name in TOLD if (value := getattr(found, name)) is not None}
    settings: dict[str, Scalar] = {name: None for name in assumed if name not in found.settings}
    settings |= {
        name: value
        for name, value in found.settings.items()
        if assumed.get(name) != value and name not in ("model", "method", *TOLD)
    }
    method = found.method or ("none" if command.model else UNKNOWN)  # weights that are not named may bring a drafter
    return {**facts, "method": method, **({"settings": settings} if settings else {})}


def _open(command: EngineCommand, setting: str) -> bool:
    """Returns True if what decides a setting is left to a variable."""
    heads = {name.partition(".")[0] for name in command.unknown - _DRAFTER}
    return not heads.isdisjoint((setting, *_DECIDED_BY.get(setting, ())))


def _with_more(command: EngineCommand, facts: PoolFacts) -> PoolFacts:
    """Returns the facts of a line that takes in words which it does not tell: what no option says is unknown."""
    given = {name.partition(".")[0] for name in command.args}
    said = {name for name, options in _DECIDED_BY.items() if not given.isdisjoint(options)}
    return replace(
        facts,
        method=UNKNOWN if facts.method is None else facts.method,
        drafter=None if facts.method is None else facts.drafter,
        runner=None,
        tool_parser=facts.tool_parser if "tool_call_parser" in given else None,
        reasoning_parser=facts.reasoning_parser if "reasoning_parser" in given else None,
        prefix_caching=facts.prefix_caching if given & _CACHE_OPTIONS else None,
        async_scheduling=facts.async_scheduling if given & _SCHEDULING_OPTIONS else None,
        settings={name: value for name, value in facts.settings.items() if name in given | said | {"platform"}},
    )


def _vllm(command: EngineCommand, named: NamedModel | None) -> PoolFacts:
    args = _with_old_names(command.args)
    speculators = _speculators(command.model, named)
    base = _base(command, named, {**args, "model": command.model or ""}, "vllm")
    unknown = {name for name in command.unknown if name.startswith(("speculative_config", "spec_"))}
    spec_open = bool(unknown) and not (unknown <= _DRAFTER and _says_method(args))
    method, drafter = (UNKNOWN, None) if spec_open else (base.method, None if unknown else base.drafter)
    if base.method is None and speculators is not None and not spec_open:
        method, drafter = speculators
    elif base.method == "draft_model" and not _says_method(args):
        method, drafter = _by_old_flags(args), base.drafter  # vLLM would look into the drafter's configuration
    own = _own_method(args) if not spec_open else None
    method = own or method
    runner = _runner(command, args, method, base.hybrid)
    return replace(
        base,
        method=method,
        drafter=drafter,
        num_speculative_tokens=_whole(base.num_speculative_tokens),
        runner=runner,
        async_scheduling=_scheduling(full_names(args).get("async_scheduling"), runner, method),
        prefix_caching=_prefix_cache(command, full_names(args).get("enable_prefix_caching"), base.hybrid),
        tool_parser=None if "tool_call_parser" in command.unknown else base.tool_parser,
        reasoning_parser=None if "reasoning_parser" in command.unknown else base.reasoning_parser,
        settings={name: value for name, value in base.settings.items() if name not in command.unknown},
    )


def _sglang(command: EngineCommand, named: NamedModel | None) -> PoolFacts:
    args = command.args
    base = _base(command, named, {}, "sglang")
    algorithm = _first(args, "speculative_algorithm", "speculative_algo")
    method = None if algorithm is None else method_of(str(algorithm))
    drafter = next(
        (value for name, value in args.items() if name.startswith("speculative_draft") and _is_path(name)), None
    )
    hidden = drafter is None and any(
        name.startswith("speculative_draft") and _is_path(name) for name in command.unknown
    )
    own = drafter is None or drafter == command.model or str(drafter).lower().rstrip("/").endswith("nextn")
    if method in _OWN_HEAD and own:
        method = UNKNOWN if hidden else "mtp"
    if not command.unknown.isdisjoint(("speculative_algorithm", "speculative_algo")):
        method = UNKNOWN
    settings: dict[str, Scalar] = {
        name: value for name, spellings in _SGLANG_SETTINGS.items() if (value := _first(args, *spellings)) is not None
    }
    experts = _first(args, "ep", "ep_size", "expert_parallel_size")
    if experts is not None:
        settings["enable_expert_parallel"] = experts != 1
    attention = _first(args, "attn_dp_size", "attention_data_parallel_size")
    if attention is not None:
        settings["enable_dp_attention"] = attention != 1
    if "lora_paths" in args:
        settings["enable_lora"] = True
    cached = None if base.hybrid is not False else True
    return replace(
        base,
        method=method,
        drafter=None if hidden else "none" if method is None or own else str(drafter),
        num_speculative_tokens=_drafts(args) if method is not None else None,
        tool_parser=_parser(command, "tool_call_parser"),
        reasoning_parser=_parser(command, "reasoning_parser"),
        prefix_caching=False if "disable_radix_cache" in args else cached,
        async_scheduling=False if "disable_overlap_schedule" in args else None,
        settings={**base.settings, "tensor_parallel_size": 1, **settings},
    )


def _base(command: EngineCommand, named: NamedModel | None, args: Mapping[str, Any], engine: str) -> PoolFacts:
    """Returns the facts that hold for either engine, and what vLLM's own arguments tell."""
    known = named or _NO_MODEL
    stated = {"kind": "vllm"} if engine == "vllm" else {"kind": "remote", "engine": engine, "method": "none"}
    version = {"engine_version": command.version} if command.version else {}
    facts = facts_from_engine_args(
        MODEL, POOL, known.family or None, known.version, args, {**stated, **version}, command.env
    )
    kinds = " ".join(str(command.args.get(name, "")) for name in ("quantization", "modelopt_quant"))
    variant = variant_of(f"{short_name(command.model or '')} {kinds}".lower())
    return replace(
        facts,
        kind="remote",
        engine=engine,
        engine_version=command.version,
        quantization=None if variant == "none" else variant,
        hybrid=True if facts.hybrid else known.hybrid,
        settings={**facts.settings, "platform": command.platform},
    )


def _speculators(model: str | None, named: NamedModel | None) -> tuple[str, str | None] | None:
    """Returns method and drafter where the weights bring a drafter of their own, or may; None if nothing says so.

    vLLM serves such a checkpoint with drafts, without any option, and a folder may hold one whose name says nothing.
    """
    name = (model or "").lower()
    if "speculator" in name:
        return next((each for each in ("eagle3", "dflash", "dspark") if each in name), UNKNOWN), model
    is_folder = name.startswith((".", "/", "~"))
    says_nothing = is_folder and (named is None or named.family is None)
    return (UNKNOWN, None) if says_nothing or name.startswith(".") or "checkpoint" in name else None


def _with_old_names(args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the options with those of vLLM before 0.9 as members of `speculative_config`."""
    args = {name: value for name, value in args.items() if name != "device"}  # which would abbreviate a newer option
    if "speculative_model" not in args:
        return args
    spec = {member: args[name] for name, member in _OLD_MEMBERS.items() if name in args}
    return {**{name: value for name, value in args.items() if name not in _OLD_MEMBERS}, "speculative_config": spec}


def _by_old_flags(args: Mapping[str, Any]) -> str:
    given = args.get("speculative_config")
    return "draft_model" if isinstance(given, Mapping) else UNKNOWN


def _own_method(args: Mapping[str, Any]) -> str | None:
    """Returns the methods of older engines, which vLLM no longer has and the advisories hardly name."""
    text = str(args.get("speculative_config", ""))
    return next((each for each in ("mlp_speculator", "medusa") if f'"{each}"' in text), None)


def _says_method(args: Mapping[str, Any]) -> bool:
    return '"method"' in str(args.get("speculative_config", "")) or any(
        name in args for name in ("spec_method", "speculative_config.method")
    )


def _runner(command: EngineCommand, args: Mapping[str, Any], method: str | None, hybrid: bool | None) -> str | None:
    """Returns the runner where it is certain."""
    named = full_names(args)
    if (chosen := chosen_runner(f"{MODEL}/{POOL}", named, command.env)) is not None:
        return chosen
    if falls_back_to_v1(method, named.get("speculative_config") or {}, named):
        return "v1"
    if method == UNKNOWN:
        return None
    stages = int(named.get("pipeline_parallel_size") or 1)
    return default_runner(method, command.version, hybrid=hybrid, stages=stages)


def _scheduling(said: Any, runner: str | None, method: str | None) -> bool | None:
    if said is not None:
        return bool(said)
    return False if runner == "v1" and method in ("ngram", "suffix") else True if runner == "v2" else None


def _prefix_cache(command: EngineCommand, said: Any, hybrid: bool | None) -> bool | None:
    """Returns whether prefixes are cached; by default they are, except on hybrids and before the V1 engine."""
    if said is not None:
        return bool(said)
    old = command.version is not None and Version(command.version) < Version("0.9")
    return None if old or hybrid is not False or any(name in command.args for name in _OF_OLD_ENGINES) else True


def _drafts(args: Mapping[str, Any]) -> int | None:
    """Returns the drafted tokens of a step: SGLang counts the one that is verified among them."""
    tokens = args.get("speculative_num_draft_tokens")
    if isinstance(tokens, int):
        return tokens - 1
    steps = args.get("speculative_num_steps")
    return steps if isinstance(steps, int) and args.get("speculative_eagle_topk") == 1 else None


def _is_path(name: str) -> bool:
    """Returns True for `--speculative-draft-model-path`, and abbreviations of it."""
    return "speculative_draft_model_path".startswith(name)


def _first(args: Mapping[str, Any], *names: str) -> Any:
    return next((args[name] for name in names if name in args), None)


def _parser(command: EngineCommand, name: str) -> str | None:
    return None if name in command.unknown else str(command.args.get(name) or "none")


def _whole(value: Any) -> int | None:
    return value if isinstance(value, int) else int(value) if str(value).isdecimal() else None
