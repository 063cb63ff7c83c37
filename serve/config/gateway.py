"""The gateway's whole configuration: one frozen pydantic model, given as `args` of the Serve config."""

import dataclasses
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from policies import Override, PolicySettings, PoolFacts
from policies.engine_args import facts_from_engine_args
from policies.facts import UNKNOWN
from policies.qualification import Unqualified
from serve.config import layers
from serve.config.access import AccessConfig, ReservedClass
from serve.config.admin import AdminConfig
from serve.config.exposure import unspoken_tls
from serve.config.grammar import raw_text_problems, resolved
from serve.config.http import HttpConfig
from serve.config.names import ModelNames, ambiguous
from serve.config.pool import Count, ModelConfig, Name, PoolConfig, Seconds, _Strict
from serve.config.problems import problems_of
from serve.config.quarantine import EchoConfig, QuarantineConfig
from serve.config.rate_limits import RateLimitsConfig
from serve.config.requests import RequestsConfig
from serve.config.telemetry import TelemetryConfig
from serve.errors import ConfigError

# What configurations of other programs have, which `serve.discovery` reads.
OF_LITELLM = "model_list"
OF_ROUTERS = ("static_backends", "static_models", "routerSpec")
# Facts that engines may tell: all but what only an operator says.
_LEARNABLE = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - {
    "model", "pool", "kind", "proven", "canary_share", "qualification",
}  # fmt: skip
_OF_OTHERS = frozenset((OF_LITELLM, *OF_ROUTERS, "proxy_config", "services", "servingEngineSpec", "kind"))


class LimitsConfig(_Strict):
    """Limits of one request, and of what one gateway replica holds for all of its clients.

    Attributes:
        starve_s: A request that waits for a slot this long moves to the next higher priority class.
        reserved_slots: Share of each pool's slots for requests of a class and those above it: `{interactive: 0.1}`. Not
            with `sticky` or `prefix` routing.
        max_connections: Client connections of one gateway replica; one more gets a 503.
        max_buffered_bytes: Request bodies that one gateway replica holds, at most half of it for one tenant; beyond
            that, 429.
        max_answer_bytes: Longest answer that is not streamed; a longer one is a 502 `engine_error`.
        max_schema_bytes: All JSON schemas of a request together.
        max_schema_depth: Deepest nesting within one schema.
        max_schema_nodes: Values in all schemas of a request together.
        max_tools: Tools of one request.
    """

    max_body_bytes: Count = 32 * 1024 * 1024
    max_connections: Count = 8192
    max_buffered_bytes: Count = 512 * 1024 * 1024
    max_answer_bytes: Count = 64 * 1024 * 1024
    request_timeout_s: Seconds = 600
    stream_idle_timeout_s: Seconds = 300
    queue_timeout_s: Seconds = 15
    starve_s: Seconds = 5
    reserved_slots: dict[ReservedClass, Annotated[float, Field(gt=0, lt=1)]] = Field(default_factory=dict)
    connect_timeout_s: Seconds = 5
    max_attempts: Count = 3
    retry_after_s: Seconds = 2
    max_schema_bytes: Count = 1024 * 1024
    max_schema_depth: Count = 64
    max_schema_nodes: Count = 50_000
    max_tools: Count = 512

    @model_validator(mode="after")
    def _leaves_slots_to_all(self) -> Self:
        if sum(self.reserved_slots.values()) >= 1:
            raise ValueError("reserved_slots: the shares add up to all slots, so that `batch` would have none")
        return self


class PolicyConfig(_Strict):
    """Settings of decisions; see docs/explanation/policy.md.

    Attributes:
        mode: Whether a caller's `enable_speculative: true` outweighs an advisory: with `advise` it does.
        optimistic: Speculate where an advisory is only suspected. Needs the guard.
        advisories: A folder that replaces the shipped advisories. It is watched: new files take effect together,
            without a restart, unless one can't be read.
        advisories_key: Public key (PEM, Ed25519) that signs the folder's `index.jws`. Files not in it are refused; once
            it has expired, tools, JSON and log-probabilities don't speculate.
        qualifications: A folder of verdicts from `specgate qualify`, watched as well.
        qualifications_key: Public key (PEM, Ed25519) that signs them.
        unqualified: Engines that draft without a valid verdict. `trust`: as the advisories say. `suspect`: tools, JSON
            and log-probabilities are suspected. `quarantine`: these don't speculate.
        load: `route`: the candidate that is worth most at the present load comes first. `observe`: only count what that
            would change.
    """

    mode: Literal["enforce", "advise"] = "enforce"
    optimistic: bool = False
    advisories: str | None = None
    advisories_key: str | None = None
    qualifications: str | None = None
    qualifications_key: str | None = None
    unqualified: Unqualified = "trust"
    load: Literal["off", "observe", "route"] = "off"
    overrides: tuple[Override, ...] = ()

    @model_validator(mode="after")
    def _signs_a_folder(self) -> Self:
        if self.advisories_key is not None and self.advisories is None:
            raise ValueError("advisories_key: it signs the folder `advisories`, which is not set")
        if (self.qualifications is None) != (self.qualifications_key is None):
            raise ValueError("qualifications and qualifications_key belong together: verdicts count only if signed")
        return self


class GatewayConfig(_Strict):
    """The root of the configuration.

    Attributes:
        echo_canary: If given (`{}` will do), every pool copies identifiers now and then, and is quarantined for calls
            and JSON if some change. Needs `quarantine`.
        replicas: Gateway replicas; one per node is a good start.
        max_ongoing_requests: Requests that one gateway replica handles at the same time.
        graceful_shutdown_timeout_s: Time for a replaced gateway replica to finish its streams.
    """

    models: dict[Name, ModelConfig] = Field(min_length=1)
    limits: LimitsConfig = LimitsConfig()
    policy: PolicyConfig = PolicyConfig()
    quarantine: QuarantineConfig = QuarantineConfig()
    echo_canary: EchoConfig | None = None
    requests: RequestsConfig = RequestsConfig()
    rate_limits: RateLimitsConfig = RateLimitsConfig()
    access: AccessConfig = AccessConfig()
    http: HttpConfig = HttpConfig()
    admin: AdminConfig = AdminConfig()
    telemetry: TelemetryConfig = TelemetryConfig()
    replicas: Count = 1
    max_ongoing_requests: Count = 2000
    graceful_shutdown_timeout_s: Seconds = 600
    ray_actor_options: dict[str, Any] = Field(default_factory=dict)

    @field_validator("models")
    @classmethod
    def _with_grammars(cls, models: dict[str, ModelConfig]) -> dict[str, ModelConfig]:
        """Puts the grammar that was found in place of `auto`, so that no two nodes find different ones."""
        found = {name: model.model_copy(update={"grammar": resolved(name, model)}) for name, model in models.items()}
        for name, model in found.items():
            for problem in raw_text_problems(model):
                raise ValueError(f"{name}: {problem}")
        return found

    @model_validator(mode="after")
    def _names_are_unique(self) -> Self:
        for problem in ambiguous(self.each_name()):
            raise ValueError(problem)
        return self

    @model_validator(mode="after")
    def _counts_copies(self) -> Self:
        if self.echo_canary is not None and not self.quarantine.enabled:
            raise ValueError("echo_canary: what it finds goes into quarantine, which is not enabled")
        return self

    @classmethod
    def load(cls, path: str | Path) -> Self:
        """Loads a Serve config file (the `args` of its application) or a file with the gateway config alone.

        A file may extend another one; see `serve.config.layers`.

        Raises:
            ConfigError: The file can't be read, or its content is not valid.
        """
        return cls.parse(args_of(layers.read(path), path), path)

    @classmethod
    def parse(cls, args: Mapping[str, Any], source: str | Path = "config") -> Self:
        """Validates plain values.

        Raises:
            ConfigError: They are not valid; the message names `source` and each wrong key.
        """
        try:
            return cls.model_validate(args)
        except ValidationError as error:
            lines = (f"  {problem}" for problem in problems_of(error, cls))
            raise ConfigError(f"{source} is not a valid gateway config:\n" + "\n".join(lines)) from error

    def each_pool(self, *kinds: str) -> Iterator[tuple[str, ModelConfig, str, PoolConfig]]:
        """Yields (model name, model, pool name, pool) in the file's order, of all kinds if none is named."""
        for model_name, model in self.models.items():
            for pool_name, pool in model.pools.items():
                if not kinds or pool.kind in kinds:
                    yield model_name, model, pool_name, pool

    def each_name(self) -> Iterator[tuple[str, str]]:
        """Yields (name, alias or pattern; the model's own name): all by which callers may ask for a model."""
        for own_name, model in self.models.items():
            for name in (own_name, *model.aliases):
                yield name, own_name

    def is_candidate(self, model: str, pool: str) -> bool:
        """Returns True for a pool that serves nobody; see `ShadowConfig`."""
        shadow = self.models[model].shadow
        return shadow is not None and shadow.pool == pool

    def resolve(self, name: str) -> str | None:
        """Returns the model's own name for a name that a caller used, or None."""
        return ModelNames(self.each_name()).own_name(name)

    def pool_facts(self) -> tuple[PoolFacts, ...]:
        """Returns the facts about every pool that are known before any engine has started."""
        return tuple(self._facts(*entry) for entry in self.each_pool())

    def facts_now(self, facts: PoolFacts, learned: Mapping[str, Any]) -> PoolFacts:
        """Returns a pool's facts as they hold now, from those before its engine was asked and what it has told since.

        An operator's explicit `facts` outweigh what an engine of ours tells. A remote pool reports the facts of its
        configuration until its engine shows that they don't hold; what was proven, was proven of the other engine.
        """
        model = self.models[facts.model]
        pool = model.pools[facts.pool]
        known = {name: value for name, value in learned.items() if name in _LEARNABLE}
        if pool.kind != "remote":
            known = {name: value for name, value in known.items() if name not in pool.facts}
            return dataclasses.replace(facts, **known)
        if all(value == pool.facts.get(name) for name, value in learned.items()):
            return facts
        other = pool.model_copy(update={"facts": known, "proven": (), "opt_out": False})
        return self._facts(facts.model, model, facts.pool, other)

    @property
    def counts_usage(self) -> bool:
        """True if usage is counted and limits are enforced."""
        enabled = self.rate_limits.enabled
        return self.access.mode == "required" if enabled is None else enabled

    def policy_settings(self) -> PolicySettings:
        """Returns the operator's settings of the policy, the guard included.

        Raises:
            ConfigError: The policy relies on a guard that does not rerun broken answers.
        """
        unhealed = sorted(name for name, model in self.models.items() if not model.guard.heals)
        if self.policy.optimistic and unhealed:
            raise ConfigError(
                f"policy.optimistic needs a guard that reruns broken answers: set guard.mode to heal or strict and "
                f"guard.reruns to at least 1 for {', '.join(unhealed)}, or optimistic to false"
            )
        policy = self.policy
        return PolicySettings(policy.mode, policy.optimistic, not unhealed, policy.overrides, policy.unqualified)

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
            drafts = pool.sim["num_speculative_tokens"]
            overrides = {"engine": "sim", "method": "sim", "num_speculative_tokens": drafts, **overrides}
        args = model.engine_args_of(pool_name) if pool.kind == "vllm" else {}
        family = None if model.family == UNKNOWN else model.family
        return facts_from_engine_args(model_name, pool_name, family, model.version, args, overrides, pool.env)


def args_of(document: Mapping[str, Any], source: str | Path = "config") -> Mapping[str, Any]:
    """Returns the gateway's part of a parsed Serve config file; without `applications`, the file is that part itself.

    Raises:
        ConfigError: It is another program's, `applications` does not hold exactly one application, or `http_options`
            ask for TLS.
    """
    if reply := unspoken_tls(document):
        raise ConfigError(f"{source}: {reply}")
    applications = document.get("applications")
    if applications is None:
        if "models" not in document and not _OF_OTHERS.isdisjoint(document):
            raise ConfigError(
                f"{source} is no configuration of specgate: `specgate front --from {source}` reads those of LiteLLM, "
                "routers, Compose and Kubernetes"
            )
        return document
    if not isinstance(applications, list) or len(applications) != 1:
        raise ConfigError(f"{source}: `applications` must hold exactly one application, specgate's")
    return applications[0].get("args") or {}
