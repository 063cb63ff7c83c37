"""Facts about a pool."""

import dataclasses
from collections.abc import Mapping
from dataclasses import dataclass, field
from typing import Any

from policies.errors import PolicyError
from policies.qualification import Qualification

Scalar = str | int | float | bool | None
# Facts that an engine tells of itself, or its command line does; the method, which may be unknown, and settings apart.
TOLD = (
    "engine", "engine_version", "drafter", "num_speculative_tokens", "runner", "tool_parser", "reasoning_parser",
    "prefix_caching", "async_scheduling",
)  # fmt: skip


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
