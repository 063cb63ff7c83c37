"""Texts for what has no docstring of its own. A description in the code always wins over one that stands here."""

DESCRIPTIONS: dict[str, str] = {
    # Introductions, with a dot at the end of the path.
    ".": "The `args` of the application in a Serve config, or a file that holds nothing else.",
    "models.MODEL.": (
        "One model under the name that callers use, and its pools. The order of the pools is the order of preference."
    ),
    "models.MODEL.guard.": (
        "How the model's responses are checked and repaired; see [the guard](../explanation/guard.md)."
    ),
    "models.MODEL.pools.POOL.": "Replicas of one model with the same configuration.",
    "models.MODEL.pools.POOL.autoscaling.": "Replicas follow the number of running and waiting requests.",
    "limits.": "What one request may take.",
    "policy.": "How decisions are made; see [the policy](../explanation/policy.md).",
    "policy.overrides[].": ("An operator's order, which outweighs advisories."),
    "quarantine.": "Quarantine of all models; see [quarantine](../explanation/quarantine.md).",
    "rate_limits.": "Limits and the accounting of usage.",
    # Keys.
    "models": "The models by the names that callers use.",
    "limits": "What one request may take.",
    "policy": "How decisions are made.",
    "requests": "Which fields and headers of a request reach an engine.",
    "http": "What web pages may do.",
    "telemetry": "Traces, and what the log says of requests.",
    "admin": "The admin API: where it listens, and its audit log.",
    "access": "Who may use the gateway.",
    "quarantine": "When a pool is taken out of service for a class of requests.",
    "rate_limits": "What tenants, keys and models of a tenant may use, and how usage is counted.",
    "ray_actor_options": "Resources of a gateway replica, in Ray's words; by default `num_cpus: 0.5`.",
    "models.MODEL.quantization": (
        "Variant of the weights, such as `fp8` or `nvfp4`, if the model's name does not show it."
    ),
    "models.MODEL.hybrid": "The model has layers with a recurrent state beside attention.",
    "models.MODEL.pools": "The model's pools by name, in order of preference.",
    "models.MODEL.pools.POOL.replicas": "Number of replicas; ignored where `autoscaling` is set.",
    "models.MODEL.pools.POOL.autoscaling": "Let the number of replicas follow the load.",
    "models.MODEL.pools.POOL.graceful_shutdown_timeout_s": "Time for a replaced replica to finish its streams.",
    "models.MODEL.pools.POOL.health_check_period_s": "Seconds between Ray Serve's health checks of a replica.",
    "models.MODEL.pools.POOL.health_check_timeout_s": (
        "A health check that takes longer counts as failed; three in a row replace the replica."
    ),
    "models.MODEL.pools.POOL.ray_actor_options": (
        "Resources of one replica, in Ray's words: `num_gpus`, `num_cpus` (default 1), `resources`."
    ),
    "models.MODEL.pools.POOL.placement_group_bundles": (
        "Resources of each process of a replica that spans several, in Ray's words."
    ),
    "models.MODEL.pools.POOL.placement_group_strategy": "Where Ray places those bundles.",
    "models.MODEL.pools.POOL.autoscaling.min_replicas": "Fewest replicas; 0 lets the pool scale to nothing.",
    "models.MODEL.pools.POOL.autoscaling.initial_replicas": "Replicas at the start; `min_replicas` if it is not given.",
    "models.MODEL.pools.POOL.autoscaling.max_replicas": "Most replicas.",
    "models.MODEL.pools.POOL.autoscaling.target_ongoing_requests": (
        "Running and waiting requests that one replica should have."
    ),
    "models.MODEL.pools.POOL.autoscaling.upscale_delay_s": (
        "How long the load must be higher before replicas are added."
    ),
    "models.MODEL.pools.POOL.autoscaling.downscale_delay_s": (
        "How long the load must be lower before replicas are removed."
    ),
    "models.MODEL.pools.POOL.autoscaling.look_back_period_s": "Time over which the load is averaged.",
    "models.MODEL.pools.POOL.autoscaling.metrics_interval_s": "How often replicas report their load.",
    "limits.max_body_bytes": "Largest request body; a larger one gets 413.",
    "limits.request_timeout_s": "Time for a whole response that is not streamed, including reruns; then 504.",
    "limits.stream_idle_timeout_s": "Longest silence of an engine, before its first byte or between two.",
    "limits.queue_timeout_s": "Longest wait for a replica if no other pool is allowed.",
    "limits.connect_timeout_s": "Longest time to open a connection to an engine.",
    "limits.max_attempts": "Engines tried until one begins to respond.",
    "limits.retry_after_s": "The `Retry-After` of 429 and 503.",
    "policy.overrides": "Orders of the operator.",
    "policy.overrides[].model": "By default every model.",
    "policy.overrides[].pool": "`forbid` without a pool forbids speculation on every pool.",
    "policy.overrides[].advisory": "The advisory to waive.",
    "policy.overrides[].classes": "Request classes it is about; every class if it is empty.",
    # Facts of PoolFacts that have no text there.
    "facts.model_version": "Version within the family, such as `2.6`.",
    "facts.num_speculative_tokens": "Draft length.",
    "facts.engine_version": "Version of the engine, such as `0.32.0`.",
    "facts.reasoning_parser": "vLLM's name of the reasoning parser.",
    "facts.prefix_caching": "The engine reuses the cache of a common prefix.",
    "facts.async_scheduling": "vLLM schedules the next step before the last one is complete.",
}

ERRORS: dict[str, str] = {
    "invalid_request": "The request contradicts itself or has a field of the wrong type; `param` names it.",
    "invalid_json": "The body is not JSON.",
    "field_not_allowed": (
        "The field, named by `param`, would steer the engine, or is unknown and `requests.mode` is `strict`. "
        "`requests.pass_fields` allows it."
    ),
    "media_not_allowed": "A URL of media is neither `data:` nor on a host of `requests.media_hosts`.",
    "over_limit": ("A field exceeds the limit that the message names, or the body has implausibly many parts."),
    "missing_field": "A required field is missing; `param` names it.",
    "cross_site": (
        "A web page of another site called an operator's route, or a request named a host that is not in `admin.names`."
    ),
    "model_not_found": "The key may use no model of that name; the message lists those that it may use.",
    "invalid_api_key": (
        "No key, or one that is mistyped, revoked or expired. Send `Authorization: Bearer KEY` or `x-api-key: KEY`."
    ),
    "insufficient_scope": "The key lacks the scope that the message names.",
    "rate_limit_exceeded": "A limit of the key, its tenant or the model is reached. Wait `Retry-After`.",
    "insufficient_quota": "The month's tokens of the key or tenant are used up; `Retry-After` leads to the next month.",
    "not_found": "No such route.",
    "method_not_allowed": "`Allow` names the route's methods.",
    "body_too_large": "The body exceeds `limits.max_body_bytes`.",
    "unsupported_media_type": "The body is not `Content-Type: application/json`, or has a `Content-Encoding`.",
    "policy_conflict": (
        "The policy forbids every pool; the message lists the first reasons. Ask `POST /v1/route/explain`."
    ),
    "overloaded": (
        "Every allowed pool has `max_queued_requests`, or the gateway has `max_ongoing_requests`. Wait `Retry-After`."
    ),
    "request_timeout": "The head took longer than 30 s, or the body came too slowly.",
    "too_many_connections": "The replica has `limits.max_connections` or no files left. Reuse connections.",
    "shutting_down": "The gateway is stopping. Send the request again.",
    "head_too_large": "The request line and headers exceed 64 KiB, or 256 headers.",
    "internal_error": "A bug in the gateway; the log has the traceback under the request id.",
    "engine_error": "The engine failed, or its connection broke. Retry.",
    "out_of_memory": "No memory for this request. Wait `Retry-After`.",
    "engine_stalled": "The engine sent nothing for `limits.stream_idle_timeout_s`. Retry.",
    "integrity_violation": "Every attempt gave a broken tool call or document, none of which was sent. Retry.",
    "pool_unavailable": "No replica of an allowed pool is up. Wait `Retry-After`; see `serve status`.",
    "shared_state_lost": "The quarantine's actor could not take an operator's order. Wait `Retry-After`.",
    "storage_failed": ("Nothing was changed: the disk that the message names can't be written. Free or repair it."),
    "deadline_exceeded": "A whole response exceeded `limits.request_timeout_s`, or the engine did not begin in time.",
}

ROUTES: dict[tuple[str, str], str] = {
    (
        "POST",
        "/v1/chat/completions",
    ): "OpenAI's chat completions, whole or streamed. Tools and JSON go through the guard.",
    ("POST", "/v1/completions"): "OpenAI's text completions, whole or streamed. Not guarded.",
    ("POST", "/v1/messages"): "Anthropic's Messages, whole or streamed, served as a chat request.",
    ("POST", "/v1/messages/count_tokens"): (
        "Tokens of a Messages request; without an engine that can count, four bytes a token and "
        "`x-specgate-estimate: true`."
    ),
    ("GET", "/v1/models"): (
        "The configured models, in OpenAI's form, or with `anthropic-version` in that of the Messages API; "
        "`max_model_len` is the longest request that every pool takes."
    ),
    ("POST", "/v1/responses"): "OpenAI's Responses, whole or streamed, stateless, served as a chat request.",
    ("POST", "/v1/responses/input_tokens"): "Tokens of a Responses request, counted as of Messages.",
    ("GET", "/v1/models/*"): "One model, by its name or an alias.",
    ("POST", "/v1/route/explain"): (
        "The decision for a request's body: pool, reasons, what would change it, in `rerun_only` why it could not be "
        "resumed. `?api=messages` or `responses` for those APIs."
    ),
    ("GET", "/admin/v1/policy"): (
        "The active policy: its digest, what each pool may do, and why a newer one was refused."
    ),
    ("GET", "/admin/v1/quarantine"): "Every counted pool and request class, with clean rate, bounds and status.",
    ("POST", "/admin/v1/quarantine"): (
        "Quarantines, lifts or pins one pool for one request class: `action` (`quarantine`, `lift` or `pin`), `model`, "
        "`pool`, `request_class`, `reason`, and `speculative` where a pool has both modes. Returns the list. Audited."
    ),
    ("GET", "/health"): "200 while the process runs, with its version.",
    ("GET", "/version"): 'specgate\'s version, as `{"version": ...}`: clients of vLLM ask there.',
    ("GET", "/ready"): (
        "200 if every pool has a running replica or may scale to zero, else 503. With the scope `observe`, the body "
        "lists the pools."
    ),
    ("GET", "/metrics"): (
        "Metrics of all gateway replicas (label `replica`) and engines (`model`, `pool`), in Prometheus' text format."
    ),
    ("GET", "/"): "The routes, as a page for browsers and JSON for others; on the admin API the dashboard.",
    ("GET", "/page/*"): "The dashboard's files.",
    ("GET", "/admin/v1/usage"): "Sums of usage: `?by=tenant,model&since=2026-11-01&until=2026-12-01`.",
    ("GET", "/admin/v1/keys"): "The keys that the caller may manage, without secrets: `?tenant=T`.",
    ("POST", "/admin/v1/keys"): (
        "Makes a key: `tenant`, and optionally `name`, `scopes`, `models`, `limits`, `priority_default`, "
        "`priority_ceiling`, `expires`. Its token is never shown again."
    ),
    ("POST", "/admin/v1/keys/*"): (
        "`/admin/v1/keys/ID/rotate` gives a key a new secret; the old one stays valid for `grace_s` (a day), and any "
        "older one ends."
    ),
    ("DELETE", "/admin/v1/keys/*"): "Revokes the key with that id on all replicas within two seconds.",
    ("GET", "/admin/v1/tenants"): "The tenants with terms of their own in the store.",
    ("PUT", "/admin/v1/tenants/*"): (
        "Replaces a tenant's terms: `weight`, `limits`, `model_limits`, `priority_ceiling`."
    ),
    ("DELETE", "/admin/v1/tenants/*"): "Removes a tenant's terms; it must have no key.",
    ("GET", "/admin/v1/me"): "The caller's key, tenant and scopes.",
    ("GET", "/admin/v1/board"): (
        "The dashboard's content as JSON, with an `ETag`; `x-specgate-audit` is the hash of the newest audit line."
    ),
    ("GET", "/admin/v1/drafts"): (
        "Each pool's drafts by request class: tokens per step (`shown`: without what was expected), answers, whether "
        "these outweigh what was expected (`measured`; the dashboard shows no others), how many still count "
        "(`weight`), seconds since the last (`idle_s`), draft length, requests per engine, step times. Needs "
        "`policy.load`."
    ),
    ("GET", "/admin/v1/shadow"): (
        "The verdict on every candidate pool, by request class: `promote`, `reject` or `not yet`, with counts, "
        "bounds, outcomes and mean times; `why` not yet, if more pairs are not all that is needed."
    ),
    ("GET", "/admin/v1/request"): (
        "What became of one of a replica's last 2,000 requests (`?request_id=ID`): class, pool, attempts, outcome, "
        "timings."
    ),
    ("GET", "/admin/v1/rerun"): (
        "What engines sent and the client got of a rerun request (`?request_id=ID`), with `admin.rerun_content`. "
        "Audited."
    ),
    ("GET", "/admin/v1/history"): "The last half hour of one pool (`?model=M&pool=P`), or of all.",
    ("GET", "/admin/v1/audit"): "The newest lines of this admin API's audit log: `?limit=100`.",
}
