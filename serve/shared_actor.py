"""A small detached Ray actor that all gateway replicas share, off the request path."""

import asyncio
from typing import Any

import ray
from ray.exceptions import RayError

from serve.errors import SharedStateError

_NAMESPACE = "specgate"
_CALL_TIMEOUT_S = 5.0
_OPTIONS = {"num_cpus": 0, "max_restarts": -1, "lifetime": "detached", "get_if_exists": True}


class SharedActor:
    """A client of the actor, which the first replica that needs it starts.

    Args:
        name: Its name in the cluster. A version belongs in it: a detached actor runs the code it was started with.
        actor_class: What runs there.
        arguments: For its constructor.
    """

    def __init__(self, name: str, actor_class: type, *arguments: Any) -> None:
        self._name = name
        self._class = actor_class
        self._arguments = arguments
        self._actor: Any = None

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor and returns its result.

        Raises:
            SharedStateError: It can't be reached.
        """
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                if self._actor is None:
                    self._actor = await asyncio.to_thread(self._find_or_start)
                return await getattr(self._actor, method).remote(*arguments)
        except (RayError, TimeoutError) as error:
            self._actor = None
            raise SharedStateError(
                "The state that the gateway's replicas share can't be reached; try again shortly.", None, None, 1.0
            ) from error

    def _find_or_start(self) -> Any:
        remote = ray.remote(self._class).options(name=self._name, namespace=_NAMESPACE, **_OPTIONS)
        return remote.remote(*self._arguments)
