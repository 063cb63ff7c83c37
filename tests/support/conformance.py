"""What the tests of `specgate conform` share: a quick pace, and a model whose one engine is the scripted one."""

from typing import Any

from lab.conform import Pace

MODEL = "conform"
QUICK = Pace(prefill_s=1.0, cancel_s=10.0, settle_s=20.0, timeout_s=60.0, poison=20, streams=16, others_s=10.0)


def model_at(url: str) -> dict[str, Any]:
    """The settings of a model whose one pool is at a URL."""
    pool = {"kind": "remote", "url": url, "facts": {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}}
    return {"family": "qwen3", "grammar": "hermes", "pools": {"standard": pool}}
