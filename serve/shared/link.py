"""A link to an actor that gateway replicas share; here the one within a process."""

import inspect
from typing import Any, Protocol


class Link(Protocol):
    """A way to the actor."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor and returns its result.

        Raises:
            SharedStateError: It can't be reached.
        """
        ...


class LocalLink:
    """An actor in this process, for a gateway without Ray that has one replica only.

    Args:
        actor: The object.
    """

    def __init__(self, actor: object) -> None:
        self._actor = actor

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method, which may be a coroutine function."""
        result = getattr(self._actor, method)(*arguments)
        return await result if inspect.isawaitable(result) else result
