"""Affinity of a request to a replica: by its conversation, and by the beginning of its prompt."""

from collections.abc import Callable, Collection
from hashlib import blake2b

from msgspec import Struct

from policies import RequestFeatures

NOWHERE: frozenset[str] = frozenset()


class Affinity(Struct, frozen=True):
    """A request's ties to a replica, computed only if its pool asks, and where it is not to go again.

    Attributes:
        session: Returns the key of its session. Requests with one key go to one replica of a sticky pool.
        blocks: Returns the blocks of its prompt (`serve.routing.prefix_index`), for a pool that routes by prefix.
        avoid: URLs of replicas that have failed it; used only where there is no other.
    """

    session: Callable[[], str]
    blocks: Callable[[], tuple[int, ...]]
    avoid: frozenset[str] = NOWHERE


NO_AFFINITY = Affinity(str, tuple)


def hint(wanted: str, avoid: Collection[str]) -> str:
    """Returns the session id by which our request routers (`serve.routing.request_routers`) learn where to go.

    Args:
        wanted: The key of a session or the URL of a replica; empty for any.
        avoid: URLs of replicas.
    """
    return " ".join((wanted, *avoid))


def read_hint(session_id: str) -> tuple[str, frozenset[str]]:
    """Returns what `hint` got; of a session id that names nothing, an empty text and no URLs."""
    wanted, *avoid = session_id.split(" ")
    return wanted, frozenset(avoid)


def session_key(features: RequestFeatures) -> str:
    """Returns a conversation's place on a sticky pool's hash ring: 16 hexadecimal digits, whatever the client sends."""
    return blake2b(features.conversation_key.encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
