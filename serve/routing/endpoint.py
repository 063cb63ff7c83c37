"""The address of one replica, and the header that names a slot there."""

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from serve.http1 import listener

# Tells an engine which slot a request occupies; see `serve.engine.slots`.
SLOT_HEADER = "x-specgate-slot"


@dataclass(frozen=True, slots=True)
class Endpoint:
    """The address of one replica. Never shown to a client.

    Attributes:
        url: Base URL, without `/v1`.
        key: Bearer token, or None.
        slot: Ray Serve's token of the slot that is reserved there; empty where there are no slots.
    """

    url: str
    key: str | None
    slot: str = ""


def url_of(metadata: Mapping[str, Any]) -> str:
    """Returns the base URL of a replica, from what it said about itself when it became ready."""
    return listener.url_of(metadata["http_host"], metadata["http_port"])
