"""Links to what runs in Ray, apart from the others: a gateway on one machine does without Ray."""

import asyncio
from collections.abc import Callable
from typing import Any

import ray
from ray.exceptions import RayError
from ray.serve.exceptions import RayServeException
from ray.serve.handle import DeploymentHandle

from serve.errors import SharedStateError

_NAMESPACE = "specgate"
_CALL_TIMEOUT_S = 5.0
_OPTIONS: dict[str, Any] = {"num_cpus": 0, "max_restarts": -1, "lifetime": "detached", "get_if_exists": True}
_HEAD = "node:__internal_head__"
_HEAD_SHARE = 0.001


class HandleLink:
    """The admin API, a deployment of the same application."""

    def __init__(self, admin_api: DeploymentHandle) -> None:
        self._handle = admin_api

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the deployment and returns its result.

        Raises:
            SharedStateError: It can't be reached, or the method failed.
        """
        try:
            async with asyncio.timeout(_CALL_TIMEOUT_S):
                return await getattr(self._handle, method).remote(*arguments)
        except (RayError, RayServeException, TimeoutError) as error:
            raise SharedStateError(f"the admin API can't be reached: {error!r}") from error


class RayLink:
    """A small detached Ray actor, which the first replica that needs it starts.

    It outlives the gateway's replicas and redeployments; if it dies, Ray restarts it, without its state. A version
    belongs in its name: a detached actor runs the code it was started with.
    """

    def __init__(
        self, name: str, actor_class: Callable[..., object], *arguments: Any, noun: str = "state", on_head: bool = False
    ) -> None:
        self._name = name
        self._class = actor_class
        self._arguments = arguments
        self._noun = noun
        self._on_head = on_head
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
                f"The {self._noun} that the gateway's replicas share can't be reached; try again shortly.",
                retry_after_s=1.0,
            ) from error

    def _find_or_start(self) -> Any:
        place = {"resources": {_HEAD: _HEAD_SHARE}} if self._on_head and _HEAD in ray.cluster_resources() else {}
        remote = ray.remote(self._class).options(name=self._name, namespace=_NAMESPACE, **_OPTIONS, **place)
        return remote.remote(*self._arguments)
