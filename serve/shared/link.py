"""A link to an actor that gateway replicas share; here the one within a process."""

import inspect
import sqlite3
from collections.abc import Callable
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


def link_to(
    application: str | None,
    name: str,
    actor: Callable[..., object],
    *arguments: Any,
    noun: str = "state",
    on_head: bool = False,
) -> Link:
    """Returns a link to an actor of a Serve application: each has its own; for what follows the name see `RayLink`.

    Without an application, outside Ray, this replica has one of its own.
    """
    if application is None:
        return LocalLink(actor(*arguments))
    from serve.shared.ray_link import RayLink  # only here, as a gateway on one machine does without Ray

    return RayLink(f"{application}-{name}", actor, *arguments, noun=noun, on_head=on_head)


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
