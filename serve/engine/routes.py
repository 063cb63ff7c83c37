"""The routes of an engine that can be reached, all of them with its key.

vLLM asks for its API key under `/v1` only: `/invocations` runs any request without one, and `/tokenize`, `/metrics` or
`/scale_elastic_ep` are as open (vLLM's own help of `--api-key` says so). Whoever reached an engine's port would go
around policy, guard and limits.
"""

ENGINE_ROUTES = frozenset(
    {
        ("POST", "/v1/chat/completions"),
        ("POST", "/v1/completions"),
        ("POST", "/tokenize"),
        ("POST", "/detokenize"),
        ("GET", "/v1/models"),
        ("GET", "/health"),
        ("GET", "/metrics"),
    }
)
