"""The Ray Serve deployment around one simulated engine: a stand-in for a vLLM replica in tests of load and faults."""

from typing import Any

from lab.sim import SimSettings, build_sim_app
from lab.sim.settings import grammar_given
from serve.config.grammar import resolved, thinking_default
from serve.config.pool import ModelConfig
from serve.engine.replica import ENGINE_ROUTES, Slots, release_slot
from serve.http1.listener import AllowedRoutes, Listener, engine_key, node_address
from serve.routing.autoscaling import ONGOING


class SimReplica:
    """One simulated engine behind its own HTTP port.

    Args:
        model: The model's name in requests.
        pool: The pool's name.
        config: The model's `ModelConfig` as a mapping, with this one pool.
    """

    async def __init__(  # type: ignore[misc]  # Ray Serve awaits it
        self, model: str, pool: str, config: dict[str, Any]
    ) -> None:
        model_config = ModelConfig.model_validate(config)
        given = {
            "model": model,
            **grammar_given(resolved(model, model_config)),
            "thinking": bool(thinking_default(model_config)),
        }
        self._settings = SimSettings.from_mapping(given | model_config.pools[pool].sim)
        self._listener = Listener(node_address(), engine_key())
        slots = Slots(build_sim_app(self._settings, self._listener.key), release_slot)
        await self._listener.start(AllowedRoutes(slots, self._listener.key, ENGINE_ROUTES))

    async def record_replica_metadata(self) -> dict[str, Any]:
        """Ray Serve's hook: called once when the replica is ready; whoever chooses this replica gets the result."""
        drafts = self._settings.num_speculative_tokens
        facts = {"engine": "sim", "method": "sim" if drafts else None, "num_speculative_tokens": drafts or None}
        return {**self._listener.metadata, "facts": facts}

    async def record_autoscaling_stats(self) -> dict[str, float]:
        """Ray Serve's hook: the metrics that `serve.routing.autoscaling` scales by."""
        return {ONGOING: self._listener.ongoing}

    async def check_health(self) -> None:
        """Ray Serve's hook: replaces the replica if this raises."""
        self._listener.check()
