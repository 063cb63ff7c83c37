"""A gateway replica's place in Ray Serve, and its links to what replicas share; outside Ray it is the only one."""

import inspect
import sqlite3
import sys
from collections.abc import Callable
from typing import Any, Protocol

from serve.errors import SharedStateError

ONLY = "local"  # name of the only replica of a gateway without Ray


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


def application() -> str | None:
    """Returns the name of the Serve application; None outside Ray."""
    context = _context()
    return None if context is None else str(context.app_name)


def gateway_replicas() -> int:
    """Returns how many gateway replicas there were when this one started."""
    context = _context()
    return 1 if context is None else max(1, int(context.world_size))


def replica_name() -> str:
    """Returns this replica's name, which no other has."""
    context = _context()
    return ONLY if context is None else str(context.replica_id.unique_id)


def link_to_admin_api(admin_api: Any) -> Link | None:
    """Returns the link to the admin API.

    In place of Ray Serve's handle there may be a link within this process, or None if there is no admin API.
    """
    if admin_api is None or isinstance(admin_api, LocalLink):
        return admin_api
    from serve.shared.ray_link import HandleLink

    return HandleLink(admin_api)


def _context() -> Any:
    """Returns the context of this replica; None outside Ray, which is not even imported then."""
    if "ray.serve" not in sys.modules:
        return None
    from ray import serve as ray_serve
    from ray.serve.exceptions import RayServeException

    try:
        return ray_serve.get_replica_context()
    except RayServeException:
        return None
