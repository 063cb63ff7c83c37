"""What an attempt holds, in place of `AsyncExitStack`, which costs a short answer 3 % of what Python executes."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager, AbstractContextManager
from types import CoroutineType
from typing import Any, TypeVar

T = TypeVar("T")


class Held(AbstractAsyncContextManager["Held"]):
    """Contexts that were entered one after the other. They end with this one, the newest first; none of them swallows
    an exception.
    """

    __slots__ = ("_exits",)

    def __init__(self) -> None:
        self._exits: list[Callable[..., Any]] = []

    async def enter(self, context: AbstractAsyncContextManager[T]) -> T:
        """Enters a context, and returns what it yields."""
        entered = await context.__aenter__()
        self._exits.append(context.__aexit__)
        return entered

    def enter_now(self, context: AbstractContextManager[T]) -> T:
        """Enters a context that is not awaited, and returns what it yields."""
        entered = context.__enter__()
        self._exits.append(context.__exit__)
        return entered

    def keep(self, context: AbstractAsyncContextManager[object]) -> None:
        """Takes over a context that was entered already."""
        self._exits.append(context.__aexit__)

    def at_end(self, call: Callable[[], object]) -> None:
        """Has something called when all that is held later has ended."""
        self._exits.append(lambda *_: call())

    async def release(self) -> None:
        """Ends all that is held now."""
        await self.__aexit__(None, None, None)

    async def __aenter__(self) -> "Held":
        return self

    async def __aexit__(self, *error: Any) -> None:
        exits = self._exits
        try:
            while exits:
                ended = exits.pop()(*error)
                if type(ended) is CoroutineType:
                    await ended
        finally:
            if exits:  # whatever the one before them raised
                await self.__aexit__(*error)
