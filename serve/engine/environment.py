"""The environment variables of engine replicas."""

import os


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Returns an engine replica's environment: variables inherited for vLLM and ourselves, overridden by the pool's."""
    inherited = {
        key: value for key, value in os.environ.items() if key.startswith(("VLLM_", "OTEL_", "HF_", "SPECGATE_"))
    }
    return {"TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1", **inherited, **extra}
