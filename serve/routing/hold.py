"""A request's hold on one slot of a pool."""

from contextlib import AbstractAsyncContextManager

from serve.routing.endpoint import Endpoint
from serve.routing.fair_queue import Turn


class Hold(AbstractAsyncContextManager[Endpoint]):
    """Holds a slot for as long as the context lasts; entering it waits for one.

    No generator, which would cost every request some microseconds.

    Attributes:
        turn: What the request's tenant is charged for the slot; there is none before there is a slot.
    """

    turn: Turn

    def begun(self) -> None:
        """Tells that the answer has begun, so that the replica has computed the prompt."""
