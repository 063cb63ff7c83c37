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
    "models.MODEL.pools.POOL.autoscaling.": (
        "Replicas follow the number of running and waiting requests. Leave it out for a fixed number of `replicas`."
    ),
    "limits.": "What one request may take.",
    "policy.": "How decisions are made; see [the policy](../explanation/policy.md).",
    "policy.overrides[].": (
        "An operator's order, which outweighs advisories. `action` decides which other keys it needs."
    ),
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
    "ray_actor_options": "Resources of a gateway replica, in Ray's words; `num_cpus` is 0.5 if it is not given.",
    "models.MODEL.quantization": (
        "Variant of the weights, such as `fp8` or `nvfp4`, where the model's name does not tell."
    ),
    "models.MODEL.hybrid": (
        "The model has layers with a recurrent state beside attention; several advisories depend on it."
    ),
    "models.MODEL.pools": "The model's pools by name, in order of preference.",
    "models.MODEL.pools.POOL.replicas": "Number of replicas; ignored where `autoscaling` is set.",
    "models.MODEL.pools.POOL.autoscaling": "Let the number of replicas follow the load.",
    "models.MODEL.pools.POOL.graceful_shutdown_timeout_s": (
        "Longest time a replica that is replaced may take to finish its streams."
    ),
    "models.MODEL.pools.POOL.health_check_period_s": "Seconds between Ray Serve's health checks of a replica.",
    "models.MODEL.pools.POOL.health_check_timeout_s": "A health check that takes longer counts as failed.",
    "models.MODEL.pools.POOL.ray_actor_options": (
        "What one replica asks of its node, in Ray's words: `num_gpus`, `num_cpus` (1 if it is not given), `resources`."
    ),
    "models.MODEL.pools.POOL.placement_group_bundles": (
        "Resources of each process of a replica that spans processes or nodes, in Ray's words."
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
    "limits.request_timeout_s": "Time for a whole response that is not streamed, reruns included; then 504.",
    "limits.stream_idle_timeout_s": "Longest silence of an engine, before its first byte and between two.",
    "limits.queue_timeout_s": "Longest wait for a replica; another allowed pool is asked much sooner.",
    "limits.connect_timeout_s": "Longest time to open a connection to an engine.",
    "limits.max_attempts": "Most engines that one request is sent to until one begins to respond.",
    "limits.retry_after_s": "The `Retry-After` of 429 and 503.",
    "policy.overrides": "Orders of the operator.",
    "policy.overrides[].model": "The model it is about; every model if it is not given.",
    "policy.overrides[].pool": "The pool it is about. `forbid` without a pool forbids speculation on every pool.",
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
    "invalid_request": (
        "The request contradicts itself or has a field of the wrong type; `param` names it. Correct the request."
    ),
    "invalid_json": "The body is not JSON.",
    "field_not_allowed": (
        "The field would steer the engine, or is unknown and `requests.mode` is `strict`; `param` names it. Leave it "
        "out, or have an operator add it to `requests.pass_fields`."
    ),
    "media_not_allowed": "A URL of media is neither `data:` nor on a host of `requests.media_hosts`.",
    "over_limit": (
        "A field is over its limit, which the message names, or the body has more messages, parts, calls and tools, or "
        "more fields, than any conversation."
    ),
    "missing_field": "A required field is missing; `param` names it.",
    "cross_site": (
        "A web page of another site asked for an operator's route, or a request asked for the admin API by a name that "
        "`admin.names` does not list."
    ),
    "model_not_found": "No model that the key may use has that name; the message lists those that it may use.",
    "invalid_api_key": (
        "No key, or one that is mistyped, revoked or expired. Send one as `Authorization: Bearer KEY` or as "
        "`x-api-key: KEY`."
    ),
    "insufficient_scope": "The key is valid, but does not have the scope that the message names.",
    "rate_limit_exceeded": "A limit of the key, its tenant or the model is reached. Retry after `Retry-After`.",
    "insufficient_quota": "The month's tokens of the key or its tenant are used up; `Retry-After` is the next month.",
    "not_found": "No such route.",
    "method_not_allowed": "The route has other methods; the header `Allow` names them.",
    "body_too_large": "The body exceeds `limits.max_body_bytes`.",
    "unsupported_media_type": (
        "A body without `Content-Type: application/json`, or with a `Content-Encoding`. Add the header, or send the "
        "body uncompressed."
    ),
    "policy_conflict": (
        "The policy forbids every pool for this request; the message lists the reasons. `POST /v1/route/explain` tells "
        "what would change it."
    ),
    "overloaded": (
        "`max_queued_requests` of every allowed pool, or the gateway's `max_ongoing_requests`, is reached. Retry after "
        "`Retry-After`."
    ),
    "request_timeout": "The head took longer than 30 s, or the body came too slowly. Send it faster.",
    "too_many_connections": "The replica has `limits.max_connections` open. Reuse connections; try again.",
    "shutting_down": "The gateway ends what is under way and then itself. Send the request again, here or elsewhere.",
    "head_too_large": "The request line and headers exceed 64 KiB.",
    "internal_error": "A bug in the gateway. The log has the traceback under the request id.",
    "engine_error": "The engine failed, or its connection broke before the response was complete. Retry.",
    "out_of_memory": "The gateway has no memory left for this request. Wait `Retry-After` seconds.",
    "engine_stalled": "The engine sent nothing for `limits.stream_idle_timeout_s`. Retry.",
    "integrity_violation": "Every attempt produced a broken tool call or document. None of it was sent. Retry.",
    "pool_unavailable": "No replica of an allowed pool is up. Retry after `Retry-After`; see `serve status`.",
    "shared_state_lost": (
        "The actor that keeps the quarantine state could not take an operator's order. Retry after `Retry-After`."
    ),
    "storage_failed": (
        "A change could not be written to the audit log, or to the store of keys, so nothing was changed. Make room on "
        "the disk that the message names, or mend it, and ask again."
    ),
    "deadline_exceeded": (
        "A whole response took longer than `limits.request_timeout_s`, or the engine did not begin in time."
    ),
}

ROUTES: dict[tuple[str, str], str] = {
    (
        "POST",
        "/v1/chat/completions",
    ): "OpenAI's chat completions, whole or streamed. Tools and JSON go through the guard.",
    ("POST", "/v1/completions"): "OpenAI's text completions, whole or streamed. Not guarded.",
    (
        "POST",
        "/v1/messages",
    ): "Anthropic's Messages, whole or streamed, served as the chat request that it stands for.",
    ("POST", "/v1/messages/count_tokens"): (
        "Tokens of a Messages request: exact where an engine has `/tokenize`, else four bytes a token and the header "
        "`x-specgate-estimate: true`."
    ),
    ("GET", "/v1/models"): (
        "The configured models, in OpenAI's form, or in that of the Messages API for clients that send "
        "`anthropic-version`; `max_model_len` is the longest request that every pool takes, where it is known."
    ),
    (
        "POST",
        "/v1/responses",
    ): "OpenAI's Responses, whole or streamed, stateless, served as the chat request that it stands for.",
    ("GET", "/v1/models/*"): "One model, by its name or an alias.",
    ("POST", "/v1/route/explain"): (
        "The decision for the body of a normal request: pool, reasons, and what would change it; `rerun_only` says "
        "why a broken answer to it could not be resumed. No engine is involved. `?api=messages` and `?api=responses` "
        "for a body of those APIs."
    ),
    (
        "GET",
        "/admin/v1/policy",
    ): "The active policy: its digest, what each pool may do, and why a newer one was refused.",
    ("GET", "/admin/v1/quarantine"): "Every counted pool and request class, with clean rate, bounds and status.",
    (
        "POST",
        "/admin/v1/quarantine",
    ): "Quarantines, lifts or pins one pool for one request class; returns the new list. The audit log gets a line.",
    ("GET", "/health"): "200 as long as the process that answers runs.",
    ("GET", "/ready"): (
        "200 if every pool has a running replica, or may scale to zero; else 503. A full pool is up. The body lists "
        "the pools for callers with the scope `observe`."
    ),
    ("GET", "/metrics"): (
        "Metrics of all gateway replicas, with a label `replica`, and of all engines of this cluster, with `model` and "
        "`pool` too, in Prometheus' text format."
    ),
    ("GET", "/"): (
        "On the data port what this is and which routes there are, a page for browsers and JSON for others; on the "
        "admin API the dashboard."
    ),
    ("GET", "/page/*"): "The page's files.",
    ("GET", "/admin/v1/usage"): "Sums of usage: `?by=tenant,model&since=2026-11-01&until=2026-12-01`.",
    (
        "GET",
        "/admin/v1/keys",
    ): "The store's keys that the caller may manage, without secrets: `?tenant=T`.",
    ("POST", "/admin/v1/keys"): (
        "Makes a key: `tenant`, and optionally `name`, `scopes`, `models`, `limits`, `priority_default`, "
        "`priority_ceiling`, `expires`. The response has the token, which is never shown again."
    ),
    ("POST", "/admin/v1/keys/*"): (
        "`/admin/v1/keys/ID/rotate` gives a key another secret; the old one stays valid for `grace_s` seconds (a day)."
    ),
    ("DELETE", "/admin/v1/keys/*"): "Ends the key with that id for ever; within two seconds no replica takes it.",
    ("GET", "/admin/v1/tenants"): "The tenants that have terms of their own in the store.",
    ("PUT", "/admin/v1/tenants/*"): (
        "Gives a tenant terms, in place of all that it had: `weight`, `limits`, `model_limits`, `priority_ceiling`."
    ),
    ("DELETE", "/admin/v1/tenants/*"): "Takes a tenant's terms away; it must have no key.",
    ("GET", "/admin/v1/me"): "The caller's key, tenant and scopes.",
    (
        "GET",
        "/admin/v1/board",
    ): "What the page shows, as JSON, with an `ETag`; `x-specgate-audit` is the hash of the newest audit line.",
    ("GET", "/admin/v1/drafts"): (
        "What is known of each pool's drafts by request class: tokens per step, the answers that told, draft length, "
        "requests per engine, and how fast its steps are. `specgate plan --live` reads it; needs `policy.load`."
    ),
    ("GET", "/admin/v1/shadow"): (
        "The verdict on every candidate pool, over all request classes and for each: `promote`, `reject` or `not yet`, "
        "the numbers of pairs by which answer was bad, the difference with bounds, outcomes and mean times."
    ),
    ("GET", "/admin/v1/request"): (
        "What became of one of the last requests: `?request_id=ID`, the `x-request-id` of its response. Class, pool, "
        "attempts, outcome and timings; no content. Each gateway replica keeps its last 2,000."
    ),
    ("GET", "/admin/v1/rerun"): (
        "What engines sent for a request that was rerun, what was wrong, and what left the guard: `?request_id=ID`. "
        "Only with `admin.rerun_content`. The audit log gets a line before the answer."
    ),
    ("GET", "/admin/v1/history"): "The last half hour of one pool (`?model=M&pool=P`), or of all together.",
    (
        "GET",
        "/admin/v1/audit",
    ): "The newest lines of the audit log that this admin API has written, newest first: `?limit=100`.",
}
