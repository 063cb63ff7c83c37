"""Where one replica answers, and the header that names a slot there."""

from dataclasses import dataclass

SLOT_HEADER = "x-specgate-slot"


"""Tells an engine which slot a request is in; see `serve.engine.slots`."""


@dataclass(frozen=True, slots=True)
class Endpoint:
    """Where one replica answers. Never shown to a client.

    Attributes:
        url: Base URL, without `/v1`.
        key: Bearer token, or None.
        slot: Ray Serve's token of the slot that is held there; empty where there are none.
    """

    url: str
    key: str | None
    slot: str = ""
