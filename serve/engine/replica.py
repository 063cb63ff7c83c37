"""The Ray Serve deployment around one vLLM engine: start, checks, warm-up, health, drain."""

import logging
import time
from typing import Any

import aiohttp

from serve.config.pool import ModelConfig
from serve.engine.allowed_routes import AllowedRoutes
from serve.engine.listener import Listener, node_address
from serve.engine.slots import Slots, release_slot
from serve.errors import ConfigError
from serve.routing.autoscaling import ONGOING

log = logging.getLogger("ray.serve.specgate.engine")


class VllmReplica:
    """One engine, reached by the gateway over its own HTTP port.

    Ray Serve's handle carries control only: `choose_replica` reserves a slot here and learns the port through
    `record_replica_metadata`.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: str, pool: str, config: dict[str, Any]
    ) -> None:
        # vLLM is imported here, not above: the controller and the gateway load this module without having vLLM.
        started = time.monotonic()
        from serve.engine.vllm import host as vllm_host
        from serve.engine.vllm import marker_check as checks

        self._model = model
        model_config = ModelConfig.model_validate(config)
        settings = model_config.pools[pool]
        log.info("%s/%s: vLLM imported in %.1f s, loading the model", model, pool, time.monotonic() - started)
        self._listener = Listener(node_address())
        args = vllm_host.parse_args(
            model_config.engine_args_of(pool), (model, *model_config.aliases), self._listener.key
        )
        self._engine = await vllm_host.start_engine(args, opt_out=settings.opt_out)
        loaded = time.monotonic()
        checks.check_markers(self._engine.client.get_tokenizer(), model_config.grammar, settings.markers)
        slots = Slots(self._engine.app, release_slot)
        await self._listener.start(AllowedRoutes(slots, self._listener.key))
        await self._warm_up()
        log.info(
            "%s/%s: ready in %.1f s (engine %.1f s, checks and warm-up %.1f s)",
            model, pool, time.monotonic() - started, loaded - started, time.monotonic() - loaded,
        )  # fmt: skip

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Ray Serve's hook; captured once when the replica is ready and handed to whoever chooses this replica."""
        return {**self._listener.metadata, "facts": self._engine.facts}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray Serve's hook; what `serve.autoscaling` goes by."""
        return {ONGOING: self._listener.ongoing}

    async def check_health(self) -> None:
        """Ray Serve's hook; raising replaces the replica."""
        self._listener.check()
        await self._engine.client.check_health()

    async def _warm_up(self) -> None:
        """Send one plain and one grammar-bound request, so that no user pays for first-time compilation."""
        address = f"http://{self._listener.host}:{self._listener.port}/v1/chat/completions"
        base = {"model": self._model, "messages": [{"role": "user", "content": "hi"}], "max_tokens": 4}
        headers = {"authorization": f"Bearer {self._listener.key}"}
        async with aiohttp.ClientSession(headers=headers) as session:
            for extra in ({}, {"response_format": {"type": "json_object"}}):
                async with session.post(address, json=base | extra) as response:
                    if response.status != 200:
                        raise ConfigError(f"the warm-up request failed: {response.status} {await response.text()}")

    def __del__(self) -> None:
        """Ray Serve calls this after the drain; the engine core is a process of its own and must go too."""
        if engine := getattr(self, "_engine", None):
            engine.shutdown()
