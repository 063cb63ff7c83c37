"""Holds of pools that a test writes as generators."""

from collections.abc import Callable
from contextlib import AbstractAsyncContextManager
from functools import wraps
from typing import Any

from serve.routing.fair_queue import ANONYMOUS, FairQueue
from serve.routing.pool import Endpoint, Hold


class _ContextHold(Hold):
    def __init__(self, context: AbstractAsyncContextManager[Endpoint]) -> None:
        self._context = context

    async def __aenter__(self) -> Endpoint:
        endpoint = await self._context.__aenter__()
        self.turn = FairQueue[int](1.0).charge(ANONYMOUS)
        return endpoint

    async def __aexit__(self, *error: Any) -> None:
        await self._context.__aexit__(*error)


def as_hold(reserve: Callable[..., AbstractAsyncContextManager[Endpoint]]) -> Callable[..., Hold]:
    """Makes a hold of what a context manager yields."""

    @wraps(reserve)
    def hold(*arguments: Any, **named: Any) -> Hold:
        return _ContextHold(reserve(*arguments, **named))

    return hold
