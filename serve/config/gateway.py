"""The gateway's whole configuration: one frozen pydantic model, given as `args` of the Serve config."""

import dataclasses
import os
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Annotated, Any, Literal, Self

from pydantic import Field, ValidationError, field_validator, model_validator

from policies import Override, PolicySettings, PoolFacts
from policies.engine_args import facts_from_engine_args
from policies.facts import UNKNOWN
from policies.policy import Mode
from policies.qualification import Unqualified
from serve.config import yaml_files
from serve.config.access import AccessConfig, ReservedClass, unspoken_tls
from serve.config.grammar import raw_text_problems, resolved
from serve.config.model_names import ambiguous
from serve.config.pool import Count, ModelConfig, Name, PoolConfig, Seconds, _Strict
from serve.config.problems import problems_of
from serve.config.quarantine import EchoConfig, QuarantineConfig
from serve.config.rate_limits import RateLimitsConfig
from serve.errors import ConfigError

# What configurations of other programs have, which `serve.discovery` reads.
OF_LITELLM = "model_list"
OF_ROUTERS = ("static_backends", "static_models", "routerSpec")
REACHED_AT = {"0.0.0.0": "127.0.0.1", "::": "::1"}  # where a machine reaches what listens on all its addresses
# Facts that engines may tell: all but what only an operator says.
_LEARNABLE = frozenset(field.name for field in dataclasses.fields(PoolFacts)) - {
    "model", "pool", "kind", "proven", "canary_share", "qualification",
}  # fmt: skip
_OF_OTHERS = frozenset((OF_LITELLM, *OF_ROUTERS, "proxy_config", "services", "servingEngineSpec", "kind"))
Origin = Annotated[str, Field(pattern=r"^(\*|[a-z][a-z0-9+.-]*://[^/\s?#@A-Z]+)$", max_length=253)]
# With a path: an exporter adds none, and collectors take spans at `/v1/traces`.
TracesUrl = Annotated[str, Field(pattern=r"^https?://[^/\s]+/\S+$", max_length=2048)]
HeaderName = Annotated[str, Field(pattern=r"^[a-z0-9!#$%&'*+.^_`|~-]+$", max_length=128)]
FieldName = Annotated[str, Field(pattern=r"^[A-Za-z_][A-Za-z0-9_-]*$", max_length=128)]
HostName = Annotated[str, Field(pattern=r"^[a-z0-9]([a-z0-9.-]*[a-z0-9])?$", max_length=253)]

# They frame the message, belong to one connection, or are set by the gateway itself.
_NEVER_PASSED = frozenset(
    {"authorization", "connection", "content-encoding", "content-length", "content-type", "cookie", "expect", "host",
     "keep-alive", "proxy-authorization", "te", "trailer", "transfer-encoding", "upgrade", "x-request-id"}
)  # fmt: skip
DEFAULT_ADMIN_PORT = 8001


class AdminConfig(_Strict):
    """The admin API: a port of its own for all that is not inference.

    Attributes:
        host: Address to listen on: loopback, or the head node's private one.
        port: On the head node.
        tls_certfile: PEM file of the certificate, read again every minute; without one, plain HTTP.
        tls_keyfile: PEM file of its key.
        names: Host names it serves beside addresses, `localhost` and `host`. Without access control it refuses others,
            against DNS rebinding.
        audit_dir: Folder of the audit log, on the head node; without one, lines are only kept in memory.
        audit_key_file: Key that seals the audit log, outside of `audit_dir`, made if missing. By default `audit.key` in
            `access.state_dir`; without either, lines have no seal.
        rerun_content: Keep what engines sent for the last 50 rerun requests of each gateway replica, for keys with the
            scope `content`. Each access is audited.
    """

    host: Annotated[str, Field(min_length=1, max_length=253)] = "127.0.0.1"
    port: Annotated[int, Field(ge=1, le=65535)] = DEFAULT_ADMIN_PORT
    tls_certfile: str | None = None
    tls_keyfile: str | None = None
    names: tuple[Annotated[str, Field(pattern=r"^[a-z0-9.-]+$", max_length=253)], ...] = ()
    audit_dir: str | None = None
    audit_key_file: str | None = None
    rerun_content: bool = False

    @model_validator(mode="after")
    def _tls_is_whole(self) -> Self:
        if (self.tls_certfile is None) != (self.tls_keyfile is None):
            raise ValueError("tls_certfile and tls_keyfile go together")
        return self

    @model_validator(mode="after")
    def _key_is_elsewhere(self) -> Self:
        if self.audit_key_file is not None:
            if self.audit_dir is None:
                raise ValueError("audit_key_file seals the log in audit_dir, which is not set")
            if _is_within(Path(self.audit_key_file), self.audit_dir):
                raise ValueError("audit_key_file is in audit_dir: whoever can write there could seal lines of his own")
        return self

    def audit_key(self, state_dir: str | None) -> Path | None:
        """Returns the file of the key that seals the audit log; None without a seal."""
        if self.audit_key_file is not None:
            return Path(self.audit_key_file)
        if self.audit_dir is None or state_dir is None:
            return None
        path = Path(state_dir) / "audit.key"
        return None if _is_within(path, self.audit_dir) else path

    @property
    def url(self) -> str:
        """The admin API's base URL, as somebody on the same machine reaches it."""
        host = REACHED_AT.get(self.host, self.host)
        scheme = "http" if self.tls_certfile is None else "https"
        return f"{scheme}://{f'[{host}]' if ':' in host else host}:{self.port}"


class RequestsConfig(_Strict):
    """Rules for what a request may hold, and for what of it reaches an engine.

    Attributes:
        mode: Unknown fields of a body: `open` passes them byte for byte, `strict` refuses them.
        pass_headers: Further headers of the client, in lower case, that engines get.
        pass_fields: Fields that engines get although the gateway would refuse or strip them, or does not know them.
        media_hosts: Hosts from which engines may fetch images, video and audio; `data:` URLs are always allowed. Remote
            engines should have `VLLM_MEDIA_URL_ALLOW_REDIRECTS=0`.
        max_n: Choices of one request.
        max_prompts: Prompts of one text completion.
        max_top_logprobs: Alternatives for each token.
        max_logit_bias: Tokens with a bias.
    """

    mode: Literal["open", "strict"] = "open"
    pass_headers: tuple[HeaderName, ...] = ()
    pass_fields: tuple[FieldName, ...] = ()
    media_hosts: tuple[HostName, ...] = ()
    max_n: Count = 4
    max_prompts: Annotated[int, Field(ge=1, le=10_000)] = 16
    max_top_logprobs: Count = 20
    max_logit_bias: Count = 300

    @field_validator("pass_headers")
    @classmethod
    def _may_be_passed(cls, names: tuple[str, ...]) -> tuple[str, ...]:
        for name in names:
            if name in _NEVER_PASSED or name.startswith("x-specgate-"):
                raise ValueError(f"the header {name!r} is never passed on: the gateway sets or withholds it itself")
        return names


class TelemetryConfig(_Strict):
    """Traces, and what the log says of requests. How lines are written is Ray Serve's `logging_config`.

    Attributes:
        traces_endpoint: Where the gateway and all vLLM engines send spans, by OTLP over HTTP, such as
            `http://collector:4318/v1/traces`. If not given, the gateway follows the OTEL_* variables, and engines send
            none.
        client_traces: `continue`: a request's spans join its client's trace. `link`: they form a trace of their own
            with a link to the client's, unknown to engines.
        log_requests: Share of requests with a log line, from 0 to 1. Requests with a 5xx, a further attempt or a rerun
            always have one. If not given, only engines' faults are logged, as warnings.
        warnings_per_minute: Warnings about requests for each gateway replica, pool and kind.
    """

    traces_endpoint: TracesUrl | None = None
    client_traces: Literal["continue", "link"] = "continue"
    log_requests: Annotated[float, Field(ge=0, le=1)] | None = None
    warnings_per_minute: Count = 6


class HttpConfig(_Strict):
    """The rights of web pages.

    Attributes:
        cors_origins: Sites whose pages may use the inference routes, as `https://app.example.com`, or `*` for all. No
            page of another site ever reaches an operator's route.
    """

    cors_origins: tuple[Origin, ...] = ()


LoadMode = Literal["off", "observe", "route"]


class LimitsConfig(_Strict):
    """Limits of one request, and of what one gateway replica holds for all of its clients.

    Attributes:
        starve_s: A request that waits for a slot this long moves to the next higher priority class.
        reserved_slots: Share of each pool's slots for requests of a class and those above it: `{interactive: 0.1}`. Not
            with `sticky` or `prefix` routing.
        max_connections: Client connections of one gateway replica; one more gets a 503. Fewer if it may open few files.
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
        advisories: A folder that replaces the shipped advisories. It is watched: new files take effect together, unless
            one can't be read.
        advisories_key: Public key (PEM, Ed25519) that signs the folder's `index.jws`. Files not in it are refused; once
            it has expired, tools, JSON and log-probabilities don't speculate.
        qualifications: A folder of verdicts from `specgate qualify`, watched as well.
        qualifications_key: Public key (PEM, Ed25519) that signs them.
        unqualified: Engines that draft without a valid verdict. `trust`: as the advisories say. `suspect`: tools, JSON
            and log-probabilities are suspected. `quarantine`: these don't speculate.
        load: `route`: the candidate that is worth most at the present load comes first. `observe`: only count what that
            would change.
    """

    mode: Mode = "enforce"
    optimistic: bool = False
    advisories: str | None = None
    advisories_key: str | None = None
    qualifications: str | None = None
    qualifications_key: str | None = None
    unqualified: Unqualified = "trust"
    load: LoadMode = "off"
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

        A file may extend another one; see `serve.config.yaml_files`.

        Raises:
            ConfigError: The file can't be read, or its content is not valid.
        """
        return cls.parse(args_of(yaml_files.read(path), path), path)

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

    def pool_facts(self) -> tuple[PoolFacts, ...]:
        """Returns the facts about every pool that are known before any engine has started."""
        return tuple(self._facts(*entry) for entry in self.each_pool())

    def facts_of(self, model: str, pool: str) -> PoolFacts:
        """Returns the facts about one pool that are known before its engine has started."""
        return self._facts(model, self.models[model], pool, self.models[model].pools[pool])

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


def _is_within(path: Path, folder: str) -> bool:
    return Path(os.path.abspath(path)).is_relative_to(os.path.abspath(folder))  # also by way of `..`


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
