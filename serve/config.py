"""The gateway's whole configuration: one frozen pydantic model, given as `args` of the Serve config."""

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from policies import PolicySettings, PoolFacts
from policies.facts import facts_from_engine_args
from serve.errors import ConfigError
from serve.guard_config import GuardConfig
from serve.launch import layers
from serve.quarantine_config import QuarantineConfig

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]


class _Strict(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class AutoscalingConfig(_Strict):
    """Replica count follows the number of requests that run or wait, at `target_ongoing_requests` a replica."""

    min_replicas: Annotated[int, Field(ge=0)] = 1
    initial_replicas: Annotated[int, Field(ge=0)] | None = None
    max_replicas: Count = 1
    target_ongoing_requests: Annotated[float, Field(gt=0)] = 16
    upscale_delay_s: Annotated[float, Field(ge=0)] = 30
    downscale_delay_s: Annotated[float, Field(ge=0)] = 600
    look_back_period_s: Seconds = 30
    metrics_interval_s: Seconds = 10

    @model_validator(mode="after")
    def _ordered(self) -> Self:
        if self.min_replicas > self.max_replicas:
            raise ValueError(f"min_replicas {self.min_replicas} is above max_replicas {self.max_replicas}")
        if self.initial_replicas is not None and not self.min_replicas <= self.initial_replicas <= self.max_replicas:
            raise ValueError(f"initial_replicas {self.initial_replicas} is not within min_replicas..max_replicas")
        return self


class PoolConfig(_Strict):
    """Identically configured replicas of one model.

    Attributes:
        kind: `vllm` (an engine hosted here), `remote` (an OpenAI-compatible URL) or `sim` (simulated, for load tests).
        engine_args: vLLM's own command-line names, with or without dashes; laid over the model's `engine_args`.
        url: Base URL of a `remote` pool, without `/v1`.
        api_key_env: Environment variable that holds the key of a `remote` pool.
        sim: Settings of a `sim` pool.
        opt_out: Whether speculation can be switched off for one request inside the engine (installs our scheduler).
        proven: Request classes that the operator has proven right on this pool; the policy allows them.
        canary_share: Share of the conversations that this pool gets first; for all others it comes last.
        facts: What the policy must know and cannot read from `engine_args`, or must know better.
        markers: Marker tokens and the ids they must have; a replica whose tokenizer differs does not start.
        env: Environment variables of the replica's process.
        routing: `balanced` (the less loaded of two replicas) or `sticky` (a session's turns go to one replica as long
            as it has room, docs/adr/0019).
        max_ongoing_requests: Requests that one replica takes at a time.
        max_queued_requests: Requests that wait for a replica at each gateway replica; more get 429.
    """

    kind: Literal["vllm", "remote", "sim"] = "vllm"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    url: str | None = None
    api_key_env: str | None = None
    sim: dict[str, Any] = Field(default_factory=dict)
    opt_out: bool = False
    proven: tuple[str, ...] = ()
    canary_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    markers: dict[str, int] = Field(default_factory=dict)
    replicas: Count = 1
    autoscaling: AutoscalingConfig | None = None
    routing: Literal["balanced", "sticky"] = "balanced"
    max_ongoing_requests: Count = 256
    max_queued_requests: Count = 512
    graceful_shutdown_timeout_s: Seconds = 600
    health_check_period_s: Seconds = 10
    health_check_timeout_s: Seconds = 60
    ray_actor_options: dict[str, Any] = Field(default_factory=dict)
    placement_group_bundles: tuple[dict[str, float], ...] | None = None
    placement_group_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "STRICT_PACK"
    env: dict[str, str] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        if (self.kind == "remote") != (self.url is not None):
            raise ValueError("a pool of kind 'remote' has a url, and only that kind has")
        if self.kind != "vllm" and self.engine_args:
            raise ValueError(f"engine_args belong to a pool of kind 'vllm', not {self.kind!r}; use facts")
        if self.kind != "sim" and self.sim:
            raise ValueError("sim settings belong to a pool of kind 'sim'")
        return self


class ModelConfig(_Strict):
    """One model as callers name it, and its pools in the file's order.

    Attributes:
        family: Model family in the words of the advisories: `kimi-k2`, `qwen3`, `qwen3-coder`, `qwen3.5`, ...
        version: Version within the family, such as `2.6`.
        grammar: Tool-call format of the model's text: `kimi_k2`, `qwen3_coder` or `hermes`.
        thinking: Whether the model thinks when the request does not say.
        aliases: Other names under which callers may ask for it.
        engine_args: Engine arguments that all vLLM pools of the model share.
        guard: How answers with tool calls or JSON are checked and healed.
    """

    family: str
    version: str | None = None
    quantization: str | None = None
    hybrid: bool = False
    grammar: Literal["kimi_k2", "qwen3_coder", "hermes"]
    thinking: bool = False
    aliases: tuple[Name, ...] = ()
    engine_args: dict[str, Any] = Field(default_factory=dict)
    guard: GuardConfig = GuardConfig()
    pools: dict[Name, PoolConfig] = Field(min_length=1)

    def engine_args_of(self, pool: str) -> dict[str, Any]:
        return {**_dashed(self.engine_args), **_dashed(self.pools[pool].engine_args)}


class LimitsConfig(_Strict):
    """What one request may take."""

    max_body_bytes: Count = 32 * 1024 * 1024
    request_timeout_s: Seconds = 600
    stream_idle_timeout_s: Seconds = 300
    queue_timeout_s: Seconds = 15
    connect_timeout_s: Seconds = 5
    max_attempts: Count = 3
    retry_after_s: Seconds = 2


class Override(_Strict):
    """An operator's word on the policy.

    Attributes:
        action: `pin` (use this pool), `forbid` (never this pool) or `waive` (disregard an advisory).
        reason: Why; shown in explanations.
        expires: ISO date after which a waiver no longer holds; a waiver needs one.
    """

    action: Literal["pin", "forbid", "waive"]
    reason: Annotated[str, Field(min_length=1)]
    model: str | None = None
    pool: str | None = None
    advisory: str | None = None
    classes: tuple[str, ...] = ()
    expires: date | str | None = None


class PolicyConfig(_Strict):
    """How decisions are made; see docs/policy.md.

    Attributes:
        mode: `advise`: a caller's `enable_speculative: true` outweighs an advisory. `enforce`: it does not.
        optimistic: Speculate where an advisory is only suspected. Needs the guard.
        advisories: A folder of advisories in place of the ones that ship with specgate.
    """

    mode: Literal["enforce", "advise"] = "enforce"
    optimistic: bool = False
    advisories: str | None = None
    overrides: tuple[Override, ...] = ()


class GatewayConfig(_Strict):
    """The root.

    Attributes:
        replicas: Gateway replicas; one a node is a good start.
        max_ongoing_requests: Requests that one gateway replica handles at a time.
        graceful_shutdown_timeout_s: How long a gateway replica that is replaced may finish its streams.
    """

    models: dict[Name, ModelConfig] = Field(min_length=1)
    limits: LimitsConfig = LimitsConfig()
    policy: PolicyConfig = PolicyConfig()
    quarantine: QuarantineConfig = QuarantineConfig()
    replicas: Count = 1
    max_ongoing_requests: Count = 2000
    graceful_shutdown_timeout_s: Seconds = 600
    ray_actor_options: dict[str, Any] = Field(default_factory=dict)

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        seen: set[str] = set()
        for name, model in self.models.items():
            for known in (name, *model.aliases):
                if known in seen:
                    raise ValueError(f"the model name {known!r} is used twice")
                seen.add(known)
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Read a Serve config file (the `args` of its application) or a file that holds the gateway config alone.

        A file may extend another one; see `serve.launch.layers`.
        """
        return cls.parse(args_of(layers.read(path), path), path)

    @classmethod
    def parse(cls, args: Mapping[str, Any], source: str | Path = "config") -> Self:
        try:
            return cls.model_validate(args)
        except ValidationError as error:
            lines = (f"  {'.'.join(map(str, e['loc'])) or '(root)'}: {e['msg']}" for e in error.errors())
            raise ConfigError(f"{source} is not a valid gateway config:\n" + "\n".join(lines)) from error

    def each_pool(self) -> Iterator[tuple[str, ModelConfig, str, PoolConfig]]:
        """Yield (model name, model, pool name, pool) in the file's order."""
        for model_name, model in self.models.items():
            for pool_name, pool in model.pools.items():
                yield model_name, model, pool_name, pool

    def resolve(self, name: str) -> str | None:
        """The model's own name for a name that a caller used, or None."""
        if name in self.models:
            return name
        return next((own for own, model in self.models.items() if name in model.aliases), None)

    def pool_facts(self) -> tuple[PoolFacts, ...]:
        """What the policy knows of every pool before any engine has started."""
        return tuple(self._facts(*each) for each in self.each_pool())

    def policy_settings(self) -> PolicySettings:
        """What the operator says, the guard included.

        Raises:
            ConfigError: The policy relies on a guard that does not heal.
        """
        unhealed = sorted(name for name, model in self.models.items() if not model.guard.heals)
        if self.policy.optimistic and unhealed:
            raise ConfigError(
                f"policy.optimistic needs a guard that reruns broken answers: set guard.mode to heal or strict and "
                f"guard.reruns to at least 1 for {', '.join(unhealed)}, or optimistic to false"
            )
        values = self.policy.model_dump(exclude={"advisories"})
        return PolicySettings.from_mapping({**values, "guard": not unhealed})

    @staticmethod
    def _facts(model_name: str, model: ModelConfig, pool_name: str, pool: PoolConfig) -> PoolFacts:
        overrides = {
            "kind": pool.kind,
            "opt_out": pool.opt_out,
            "proven": frozenset(pool.proven),
            "canary_share": pool.canary_share,
            "hybrid": model.hybrid,
            **({"quantization": model.quantization} if model.quantization else {}),
            **pool.facts,
        }
        if pool.kind == "sim" and pool.sim.get("num_speculative_tokens"):
            overrides = {"engine": "sim", "method": "sim", **overrides}
        args = model.engine_args_of(pool_name) if pool.kind == "vllm" else {}
        return facts_from_engine_args(model_name, pool_name, model.family, model.version, args, overrides)


def args_of(document: Mapping[str, Any], source: str | Path = "config") -> Mapping[str, Any]:
    """The gateway's part of a parsed Serve config file; a file without `applications` is the gateway's part itself."""
    applications = document.get("applications")
    if applications is None:
        return document
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{source}: `applications` holds exactly one application, specgate's")
    return applications[0].get("args") or {}


def _dashed(args: Mapping[str, Any]) -> dict[str, Any]:
    return {key.replace("_", "-"): value for key, value in args.items()}
