"""Environment of an engine replica."""

import os


def environment(extra: dict[str, str]) -> dict[str, str]:
    """Environment of an engine replica: what the caller's process has of vLLM's own, then the pool's."""
    inherited = {
        key: value for key, value in os.environ.items() if key.startswith(("VLLM_", "OTEL_", "HF_", "SPECGATE_"))
    }
    return {"TOKENIZERS_PARALLELISM": "false", "VLLM_NO_USAGE_STATS": "1", **inherited, **extra}
