"""The configuration of the test session's cluster, and a look behind the gateway."""

import re
from pathlib import Path
from typing import Any

import aiohttp

from serve.app import deployment_name
from serve.config import GatewayConfig

ROOT = Path(__file__).parents[2]


def session_config() -> GatewayConfig:
    """The laptop config, and one simulated model whose engines the tests may kill and overload."""
    laptop = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml").model_dump(mode="json")
    small = {"kind": "sim", "ray_actor_options": {"num_cpus": 0.1}, "graceful_shutdown_timeout_s": 5}
    laptop["models"]["sim"] = {
        "family": "sim",
        "grammar": "qwen3_coder",
        "pools": {
            "speculative": {
                **small,
                "sim": {"num_speculative_tokens": 3, "step_ms": 20, "content_tokens": [100, 100]},
                "health_check_period_s": 1,
            },
            "standard": {**small, "sim": {"step_ms": 20, "content_tokens": [100, 100]}},
        },
    }
    laptop["models"]["narrow"] = {
        "family": "sim",
        "grammar": "qwen3_coder",
        "pools": {
            "standard": {
                **small,
                "sim": {"step_ms": 20, "content_tokens": [100, 100]},
                "max_ongoing_requests": 1,
                "max_queued_requests": 1,
            }
        },
    }
    return GatewayConfig.parse(laptop)


class Behind:
    """What one replica of a pool says of itself, past the gateway."""

    def __init__(self, url: str, key: str) -> None:
        self.url = url
        self._headers = {"authorization": f"Bearer {key}"}

    @classmethod
    async def pool(cls, model: str, pool: str) -> "Behind":
        from ray import serve as ray_serve

        handle = ray_serve.get_deployment_handle(deployment_name(model, pool), "specgate")
        async with handle.choose_replica() as selection:
            found = selection.replica_metadata
        return cls(f"http://{found['http_host']}:{found['http_port']}", found["http_key"])

    async def metric(self, name: str) -> float:
        """The sum of a Prometheus metric over its labels."""
        async with aiohttp.ClientSession() as session, session.get(f"{self.url}/metrics") as response:
            text = await response.text()
        return sum(float(value) for value in re.findall(rf"^{re.escape(name)}(?:\{{.*\}})? (\S+)$", text, re.MULTILINE))

    async def chat(self, body: dict[str, Any]) -> dict[str, Any]:
        """Ask the engine itself."""
        async with (
            aiohttp.ClientSession(headers=self._headers) as session,
            session.post(f"{self.url}/v1/chat/completions", json=body) as response,
        ):
            answer: dict[str, Any] = await response.json()
            assert response.status == 200, answer
            return answer
