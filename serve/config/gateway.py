"""The gateway's whole configuration: one frozen pydantic model, given as `args` of the Serve config."""

from collections.abc import Iterator, Mapping
from datetime import date
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, model_validator

from policies import PolicySettings, PoolFacts
from policies.facts import facts_from_engine_args
from serve.config import layers
from serve.config.pool import Count, ModelConfig, Name, PoolConfig, Seconds, _Strict
from serve.config.quarantine import QuarantineConfig
from serve.errors import ConfigError


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
