"""The configuration of models and their pools."""

import re
from collections.abc import Mapping
from typing import Annotated, Any, Literal, Self
from urllib.parse import urlsplit

from pydantic import AfterValidator, BaseModel, ConfigDict, Field, field_validator, model_validator

from policies.facts import UNKNOWN
from policies.facts import engine_of as plain_name
from policies.model_families import plain_family, plain_variant
from policies.vllm_options import full_names
from serve.config.guard import GuardConfig
from serve.config.model_names import STAR
from serve.config.secret import Secret
from serve.parsing import GRAMMARS

Name = Annotated[str, Field(pattern=r"^[A-Za-z0-9][A-Za-z0-9._/-]*$", max_length=128)]
Seconds = Annotated[float, Field(gt=0)]
Count = Annotated[int, Field(ge=1)]
_PLACEHOLDER = re.compile(r"[${}<>]")
_NO_HOST = re.compile(r"[\s,*]")
AUTO = "auto"
NO_GRAMMAR = "none"


def _known_grammar(name: str) -> str:
    if name not in (AUTO, NO_GRAMMAR) and name not in GRAMMARS:
        raise ValueError(f"there is no grammar {name!r}; known: {AUTO}, {NO_GRAMMAR}, {', '.join(sorted(GRAMMARS))}")
    return name


HOSTED = ("vllm", "sim")  # kinds of pools whose engines run in the cluster
_RAW_ENGINES = frozenset({"vllm", "sglang"})
Alias = Annotated[str, Field(pattern=r"^(?:[A-Za-z0-9][A-Za-z0-9._/-]*\*?|\*)[A-Za-z0-9._/-]*$", max_length=128)]
GrammarName = Annotated[str, AfterValidator(_known_grammar)]


class _Strict(BaseModel):
    # A value that is refused may be a secret in the wrong place, and errors reach logs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class AutoscalingConfig(_Strict):
    """Scales replicas by the number of running and waiting requests, `target_ongoing_requests` for each replica."""

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


class EndpointsConfig(_Strict):
    """Engines behind Services of the Kubernetes cluster in which the gateway runs: their ready endpoints.

    Attributes:
        service: Name of the Service.
        labels: In place of it, labels of one or several Services.
        namespace: By default the gateway's own.
        port: Number or name of the endpoints' port; needed if they have several.
    """

    service: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    labels: dict[str, str] = Field(default_factory=dict)
    namespace: Annotated[str, Field(pattern=r"^[a-z0-9]([-a-z0-9]*[a-z0-9])?$", max_length=63)] | None = None
    port: Annotated[int, Field(ge=1, le=65535)] | str | None = None

    @model_validator(mode="after")
    def _says_which(self) -> Self:
        if (self.service is None) is not bool(self.labels):
            raise ValueError("say either service, the name of a Service, or labels that Services have")
        return self


class PoolConfig(_Strict):
    """A pool of identically configured replicas of one model.

    Attributes:
        kind: `vllm` (an engine hosted here), `remote` (an OpenAI-compatible URL) or `sim` (simulated, for load tests).
        engine_args: vLLM's command-line options, full or short (`tp`), merged over the model's. Abbreviations and
            `config` are refused.
        url: Base URL of a `remote` pool, without `/v1`.
        urls: In place of `url`, those of several equal engines. Each is a replica, left out while it does not answer or
            is something else.
        resolve: Each address of a URL's host is a replica, as behind a headless Service; looked up every few seconds.
            Plain `http` only.
        endpoints: In place of `url`, a Service of Kubernetes, each of whose pods is a replica; looked up every few
            seconds. The gateway's account must list EndpointSlices: `deploy/kubernetes/endpoints`.
        served_name: The model's name at the engine of a `remote` pool, even a path; by default the name that the client
            used.
        reasoning_field: The field in which the engine of a `remote` pool reads the reasoning of earlier turns:
            `reasoning` (vLLM) or `reasoning_content` (many others). If not given, the client's is kept.
        api_key_env: Environment variable with the key of a `remote` pool, on each node with a gateway replica.
        api_key_file: File with that key; read again every few seconds.
        sim: Settings of a `sim` pool.
        opt_out: Install our scheduler, so that speculation can be switched off for single requests.
        proven: Request classes that the operator has proven correct on this pool.
        canary_share: Share of the conversations that this pool serves first; for all others it comes last.
        facts: Facts that are missing or wrong in `engine_args`.
        parse: Who parses the model's text: the `engine`, or the `gateway` with the model's `grammar`.
        markers: Marker tokens and the ids they must have; a replica whose tokenizer differs does not start.
        env: Environment variables of the replica's process, beside the node's own. No secrets: Ray's dashboard shows
            them.
        routing: `balanced` (the less loaded of two replicas), `sticky` (a session stays on its replica while that has
            capacity, docs/adr/0019) or `prefix` (where the prompt's beginning was sent before, unless that replica is
            much busier, docs/adr/0045; gateways outside Ray tell each other by `rate_limits.store`). In Ray pools only
            `balanced` is always fair among tenants that wait.
        max_ongoing_requests: Requests that one replica handles at once, ideally as many as its engine runs. For a
            remote pool: of each URL, divided among the gateway replicas.
        max_queued_requests: Requests that wait at each gateway replica; more get 429.
    """

    kind: Literal["vllm", "remote", "sim"] = "vllm"
    engine_args: dict[str, Any] = Field(default_factory=dict)
    url: str | None = None
    urls: Annotated[tuple[str, ...], Field(max_length=1000)] = ()
    resolve: bool = False
    endpoints: EndpointsConfig | None = None
    served_name: Annotated[str, Field(min_length=1, max_length=512)] | None = None
    reasoning_field: Literal["reasoning", "reasoning_content"] | None = None
    api_key_env: str | None = None
    api_key_file: str | None = None
    sim: dict[str, Any] = Field(default_factory=dict)
    opt_out: bool = False
    proven: tuple[str, ...] = ()
    canary_share: Annotated[float, Field(gt=0, lt=1)] | None = None
    facts: dict[str, Any] = Field(default_factory=dict)
    parse: Literal["engine", "gateway"] = "engine"
    markers: dict[str, int] = Field(default_factory=dict)
    replicas: Count = 1
    autoscaling: AutoscalingConfig | None = None
    routing: Literal["balanced", "sticky", "prefix"] = "balanced"
    max_ongoing_requests: Count = 256
    max_queued_requests: Count = 512
    graceful_shutdown_timeout_s: Seconds = 600
    health_check_period_s: Seconds = 10
    health_check_timeout_s: Seconds = 60
    ray_actor_options: dict[str, Any] = Field(default_factory=dict)
    placement_group_bundles: tuple[dict[str, float], ...] | None = None
    placement_group_strategy: Literal["PACK", "SPREAD", "STRICT_PACK", "STRICT_SPREAD"] = "STRICT_PACK"
    env: dict[str, str] = Field(default_factory=dict)

    @field_validator("facts")
    @classmethod
    def _null_states_nothing(cls, facts: dict[str, Any]) -> dict[str, Any]:
        return {name: value for name, value in facts.items() if value is not None}

    @model_validator(mode="after")
    def _kind_has_what_it_needs(self) -> Self:
        if (self.kind == "remote") != bool(self.addresses or self.endpoints):
            raise ValueError("a pool of kind 'remote' has a url, urls or endpoints, and only that kind has")
        if self.kind != "vllm" and self.engine_args:
            raise ValueError(f"engine_args belong to a pool of kind 'vllm', not {self.kind!r}; use facts")
        if self.kind != "remote" and self.served_name:
            raise ValueError("served_name belongs to a pool of kind 'remote'; vllm has served-model-name")
        if self.kind != "remote" and self.reasoning_field:
            raise ValueError("reasoning_field belongs to a pool of kind 'remote'; the others read `reasoning`")
        if self.api_key("") and self.kind != "remote":
            raise ValueError("api_key_env and api_key_file belong to a pool of kind 'remote'")
        if self.parse == "gateway" and engine_of(self) not in _RAW_ENGINES:
            raise ValueError(
                "parse: gateway needs an engine that hands on raw text; say `engine: vllm` or `sglang` in facts"
            )
        if self.kind != "sim" and self.sim:
            raise ValueError("sim settings belong to a pool of kind 'sim'")
        return self

    @model_validator(mode="after")
    def _addresses_are_urls(self) -> Self:
        if self.url is not None and self.urls:
            raise ValueError("url and urls exclude each other; name all in urls")
        if self.addresses and self.endpoints is not None:
            raise ValueError("endpoints stand in place of a url or urls")
        for url in self.addresses:
            check_url(url)
        if len(set(self.addresses)) != len(self.addresses):
            raise ValueError("urls names an engine twice")
        if self.resolve and not (self.addresses and all(url.startswith("http://") for url in self.addresses)):
            raise ValueError("resolve needs a url, or urls, of http: certificates are for names, not for addresses")
        return self

    @property
    def addresses(self) -> tuple[str, ...]:
        """The base URLs of a `remote` pool's engines, without a slash at their ends."""
        return tuple(url.rstrip("/") for url in (self.urls if self.url is None else (self.url,)))

    @property
    def least_replicas(self) -> int:
        """The replicas that should run at least; of a `remote` pool, its URL."""
        if self.kind == "remote":
            return 1
        return self.replicas if self.autoscaling is None else self.autoscaling.min_replicas

    def api_key(self, place: str) -> Secret | None:
        """Returns where the key of a `remote` pool is; None if it needs none."""
        if not self.api_key_env and not self.api_key_file:
            return None
        return Secret(f"{place}.api_key", self.api_key_env, self.api_key_file)


def engine_of(pool: PoolConfig) -> str:
    """Returns the kind of engine that a pool has, in the advisories' words, as far as its configuration says."""
    return "vllm" if pool.kind == "vllm" else plain_name(str(pool.facts.get("engine", pool.kind)))


def check_url(url: str) -> None:
    """Checks that a URL is the base of a server's routes.

    Raises:
        ValueError: It is not.
    """
    try:
        parts = urlsplit(url)
        host = parts.hostname or " "
        whole = parts.scheme in ("http", "https") and not _NO_HOST.search(host) and parts.port != 0
        user = parts.username
    except ValueError:  # no number as its port
        whole = False
    if _PLACEHOLDER.search(url):
        raise ValueError("url holds a placeholder or a variable, which nobody fills in: write the address itself")
    if not whole:
        raise ValueError("url must have the form http://HOST:PORT or https://HOST")
    if user is not None:
        raise ValueError("url holds a user or a password, which no engine is sent; name its key with api_key_env")
    if parts.query or parts.fragment:
        raise ValueError("url has a query or a fragment; give the server's base URL")
    if "/v1" in f"{parts.path}/" and parts.path.split("/v1", 1)[1][:1] in ("", "/"):
        raise ValueError("url is given without `/v1` and what follows it, which the gateway adds")


class ShadowConfig(_Strict):
    """A candidate pool that serves no clients: it gets copies of requests, and its answers are judged and discarded.

    Attributes:
        pool: The candidate, one of the model's pools.
        share: Share of the guarded requests that are copied.
        max_ongoing: Copies that a gateway replica has in flight; more are not made.
        alpha: Chance of a wrong verdict on the candidate, over its whole trial.
        tolerance: By how much more often its answers may be bad for it to be promoted.
    """

    pool: str
    share: Annotated[float, Field(gt=0, le=1)] = 0.02
    max_ongoing: Count = 8
    alpha: Annotated[float, Field(gt=0, le=0.2)] = 0.01
    tolerance: Annotated[float, Field(gt=0, le=0.5)] = 0.01


class ModelConfig(_Strict):
    """One model as callers name it, and its pools in the file's order.

    Attributes:
        family: Model family as in the advisories: `kimi-k2`, `qwen3`, `qwen3-coder`, `qwen3.5`, ... With `unknown`,
            advisories about any family apply.
        version: Version within the family, such as `2.6`.
        grammar: Tool-call format: one of those in docs/explanation/parsing.md, `auto` (by name, parser and
            architecture), or `none` (calls are checked as JSON).
        thinking: Whether the model thinks by default. If not given, as the pools' `default-chat-template-kwargs` or the
            chat templates of its family say.
        aliases: Other names for it. One `*` stands for any characters but `:`, as in `claude-*`; exact names go first.
        engine_args: Engine arguments of all its vLLM pools.
        guard: How answers with tool calls or JSON are checked and healed.
        shadow: The candidate among its pools, if it has one (docs/how-to/try-a-candidate.md).
    """

    family: Annotated[str, AfterValidator(plain_family)] = UNKNOWN
    version: str | None = None
    quantization: Annotated[str, AfterValidator(plain_variant)] | None = None
    hybrid: bool = False
    grammar: GrammarName = AUTO
    thinking: bool | None = None
    aliases: tuple[Alias, ...] = ()
    engine_args: dict[str, Any] = Field(default_factory=dict)
    guard: GuardConfig = GuardConfig()
    shadow: ShadowConfig | None = None
    pools: dict[Name, PoolConfig] = Field(min_length=1)

    @property
    def exact_aliases(self) -> tuple[str, ...]:
        """Its aliases without patterns: the names that its engines know as well."""
        return tuple(alias for alias in self.aliases if STAR not in alias)

    def engine_args_of(self, pool: str) -> dict[str, Any]:
        """Returns a pool's engine arguments over the model's own, under their full names with dashes."""
        args = _underscored(self.engine_args) | _underscored(self.pools[pool].engine_args)
        return {name.replace("_", "-"): value for name, value in full_names(args).items()}

    def weights_of(self, pool: str) -> tuple[str | None, str | None]:
        """Returns the weights of a vLLM pool and those of its drafter, folders or names on a hub, as far as stated."""
        args = self.engine_args_of(pool)
        return args.get("model"), (args.get("speculative-config") or {}).get("model")

    def engine_seats(self, pool: str) -> int | None:
        """Returns how many sequences one replica runs at the same time; None if `max-num-seqs` is not stated."""
        settings = self.pools[pool]
        args = settings.sim if settings.kind == "sim" else self.engine_args_of(pool)
        seats = args.get("max_num_seqs" if settings.kind == "sim" else "max-num-seqs")
        ranks = args.get("data-parallel-size", 1)
        return seats * ranks if isinstance(seats, int) and isinstance(ranks, int) else None

    @model_validator(mode="after")
    def _candidate_can_be_compared(self) -> Self:
        if self.shadow is None:
            return self
        if self.shadow.pool not in self.pools:
            raise ValueError(f"shadow.pool: there is no pool {self.shadow.pool!r}; there are {', '.join(self.pools)}")
        if len(self.pools) == 1:
            raise ValueError("shadow.pool: the model has no other pool, and a candidate serves nobody")
        if self.pools[self.shadow.pool].canary_share is not None:
            raise ValueError("canary_share: this pool is the candidate of `shadow`, which serves nobody")
        if self.guard.mode == "off":
            raise ValueError("shadow: without the guard there is nothing to compare; set guard.mode")
        return self

    @model_validator(mode="after")
    def _engine_args_can_be_read(self) -> Self:
        for name, pool in self.pools.items():
            if pool.kind == "vllm":
                self.engine_args_of(name)
        return self


def _underscored(args: Mapping[str, Any]) -> dict[str, Any]:
    """Returns the arguments with one spelling for each name, so that a pool's replace the model's."""
    return {key.replace("-", "_"): value for key, value in args.items()}
