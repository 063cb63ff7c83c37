"""A link to an actor that gateway replicas share; here the one within a process."""

import inspect
import sqlite3
from typing import Any, Protocol

from serve.errors import SharedStateError


class Link(Protocol):
    """A way to the actor."""

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method of the actor and returns its result.

        Raises:
            SharedStateError: It can't be reached.
        """
        ...


class LocalLink:
    """An actor in this process, for a gateway without Ray that has one replica only."""

    def __init__(self, actor: object) -> None:
        self._actor = actor

    async def call(self, method: str, *arguments: Any) -> Any:
        """Calls a method, which may be a coroutine function.

        Raises:
            SharedStateError: The actor could not do it, which to the caller is the same as an actor that is away.
        """
        try:
            result = getattr(self._actor, method)(*arguments)
            return await result if inspect.isawaitable(result) else result
        except (sqlite3.Error, OSError, ArithmeticError) as error:
            raise SharedStateError(
                f"The state that replicas share can't be used: {error}", retry_after_s=1.0
            ) from error
