"""Facts about a pool."""

import dataclasses
from collections.abc import Mapping, Sequence
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any

import yaml
from packaging.version import InvalidVersion, Version

from policies.errors import PolicyError
from policies.model_families import plain_family, plain_variant
from policies.qualification import Qualification

Scalar = str | int | float | bool | None
# Facts that an engine tells of itself, or its command line does; the method, which may be unknown, and settings apart.
TOLD = (
    "engine", "engine_version", "drafter", "num_speculative_tokens", "runner", "tool_parser", "reasoning_parser",
    "prefix_caching", "async_scheduling",
)  # fmt: skip
_FIRST = Version("0.1")


@dataclass(frozen=True, slots=True)
class PoolFacts:
    """One pool of identically configured replicas. None means unknown, except for `method`: there it is no speculation,
    for which configurations write `none`.

    Attributes:
        family: Model family in the words of the advisories: `kimi-k2`, `qwen3.6`, ...
        quantization: Variant of the weights, such as `nvfp4` or `fp8`.
        drafter: Name or path of the draft model; `none` for methods without one.
        method: vLLM's name for the speculative method; None without speculation. On a remote pool the default is
            `unknown`, which matches every advisory on methods.
        engine: `vllm`, `sglang`, `sim`, ...
        runner: Generation of vLLM's model runner, `v1` or `v2`.
        tool_parser: vLLM's name for it; `none` if the engine parses no tools.
        hybrid: The model has layers with a recurrent state (GDN, Mamba) besides attention.
        settings: Further settings by vLLM's names with underscores.
        opt_out: Speculation can be switched off for one request inside the engine.
        proven: Request classes that the operator has proven right on this pool.
        canary_share: Share of the conversations that this pool serves first; for the rest it comes last. None is no
            canary.
        qualification: The verdicts on this engine, if it was qualified.
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
    qualification: Qualification | None = None

    def __post_init__(self) -> None:
        """Refuses the word for no speculation, under which a pool would count as one that drafts.

        Raises:
            PolicyError: The method is `none`.
        """
        if self.method == "none":
            raise PolicyError(f"pool {self.pool!r}: without speculation `method` is None, which files call `none`")

    @property
    def speculative(self) -> bool:
        """True if the pool's engines draft tokens."""
        return self.method is not None

    def to_dict(self) -> dict[str, Any]:
        """Returns plain values, for JSON and for the policy's digest."""
        values = {fact.name: getattr(self, fact.name) for fact in dataclasses.fields(self)}
        return {
            **values,
            "settings": dict(sorted(self.settings.items())),
            "proven": sorted(self.proven),
            "qualification": self.qualification and self.qualification.to_dict(),
        }


_SWITCHES = frozenset({"hybrid", "prefix_caching", "async_scheduling", "opt_out"})
_OTHER = frozenset({"settings", "proven", "num_speculative_tokens", "canary_share"})
_KNOWN = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - {"model", "pool", "qualification"}
UNKNOWN = "unknown"
"""The method of an engine that drafts, or may, in a way that nobody knows: it matches every condition on methods."""
_NOT_KNOWN = {"method": UNKNOWN}
METHODS = frozenset(
    (
        "ngram", "ngram_gpu", "suffix", "medusa", "mlp_speculator", "draft_model", "custom_class", "eagle", "eagle3",
        "extract_hidden_states", "mtp", "dflash", "dspark", "sim",
    )
)  # fmt: skip
"""Every method, in the words of the advisories."""
_OTHER_NAMES = {"nextn": "mtp", "frozen_kv_mtp": "mtp", "standalone": "draft_model", "eagle3.1": "eagle3"}  # SGLang's

# Other engines as their projects, packages and users call them, in the words of the advisories.
_ENGINES = {
    "llama-cpp": "llamacpp", "llama-server": "llamacpp", "tensorrt-llm": "trtllm", "trt-llm": "trtllm",
    "text-generation-inference": "tgi", "mlx-lm": "mlx", "lm-studio": "lmstudio", "beellama-cpp": "beellama",
}  # fmt: skip


def checked(where: str, facts: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the facts that have a value. A fact that can't be read would match no advisory: it is refused.

    Raises:
        PolicyError: A name is no fact's, or a value is of the wrong type.
    """
    if unknown := set(facts) - _KNOWN:
        close = get_close_matches(min(unknown), _KNOWN, n=1)
        hint = f"did you mean `{close[0]}`? " if close else ""
        raise PolicyError(f"{where}: unknown facts {sorted(unknown)}; {hint}known: {', '.join(sorted(_KNOWN))}")
    stated = {name: value for name, value in facts.items() if value is not None}
    for name, value in stated.items():
        if name in _SWITCHES and not isinstance(value, bool):
            raise PolicyError(f"{where}: the fact {name} is true or false, without quotes, not {value!r}")
        if name not in _SWITCHES | _OTHER and (isinstance(value, bool) or not isinstance(value, str | int | float)):
            raise PolicyError(f"{where}: the fact {name} is a text, not {value!r}")
    settings = stated.get("settings", {})
    if not isinstance(settings, Mapping):
        raise PolicyError(f"{where}: the fact settings is a mapping of names to values, not {settings!r}")
    if settings:
        stated["settings"] = {str(name).replace("-", "_"): value for name, value in settings.items()}
    for name, plain in (("engine", engine_of), ("family", plain_family), ("quantization", plain_variant)):
        if name in stated:
            stated[name] = plain(str(stated[name]))
    return _with_method(stated)


def fact_of_text(name: str, text: str) -> Any:
    """Returns the value of a fact as a command line has it, which is YAML; a version is none, or 0.10 would be 0.1.

    Raises:
        PolicyError: It can't be read.
    """
    if name in ("family", "method") or name.endswith("version"):
        return text
    try:
        return yaml.safe_load(text)
    except yaml.YAMLError as error:
        raise PolicyError(f"the fact {name} can't be read: {text!r} is no value in YAML") from error


def common(facts: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """Returns the facts that hold for all engines of a pool. One in which they differ is not known, and neither is one
    that some do not tell: None, and as the method `UNKNOWN`, since None is an engine that does not draft.
    """
    names = dict.fromkeys(name for each in facts for name in each)
    return {name: _agreed(name, [each.get(name, _NOT_KNOWN.get(name)) for each in facts]) for name in names}


def _agreed(name: str, values: Sequence[Any]) -> Any:
    if all(value == values[0] for value in values):
        return values[0]
    if name == "settings":
        return common([value or {} for value in values])
    if name == "engine_version" and all(values) and len(versions := set(map(without_build, values))) == 1:
        return versions.pop()
    return _NOT_KNOWN.get(name)


def without_build(version: str) -> str:
    """Returns an engine's version without what tells its local builds apart: each of them is that version."""
    return version.partition("+")[0]


def release_of(version: str) -> Version | None:
    """Returns an engine's version, if it is one. A build that could not see its tags tells none: it counts its commits
    from 0.1, as the fork does that calls itself `0.1.dev7557+g977180c`.
    """
    try:
        parsed = Version(version)
    except InvalidVersion:
        return None
    return parsed if parsed >= _FIRST else None


def engine_of(name: str) -> str:
    """Returns an engine's name in the advisories' words: `llama.cpp` is `llamacpp`."""
    plain = name.strip().lower()
    dashed = plain.replace(".", "-").replace("_", "-").replace(" ", "-")
    return _ENGINES.get(dashed, plain)


def method_of(name: str) -> str | None:
    """Returns a speculative method in the advisories' words: `qwen3_next_mtp` is `mtp`; `none` is no method.

    A name that is not known, or is misspelt, is `UNKNOWN`: to take it for a method that no advisory names would trust
    it more than any other.
    """
    plain = name.strip().lower().replace("-", "_")
    if plain in ("", "none"):
        return None
    plain = "mtp" if plain.endswith("_mtp") else _OTHER_NAMES.get(plain, plain)
    return plain if plain in METHODS else UNKNOWN


def _with_method(stated: dict[str, Any]) -> dict[str, Any]:
    if "method" not in stated:
        return stated
    method = method_of(str(stated.pop("method")))
    return stated if method is None else {**stated, "method": method}
