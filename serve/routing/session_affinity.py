"""Which requests belong together: the turns of a conversation do best on the replica that has its prefix in cache."""

from collections.abc import Mapping
from hashlib import blake2b

from policies import RequestFeatures

SESSION_HEADER = "x-session-id"


def session_key(headers: Mapping[str, str], features: RequestFeatures, attempt: int = 0) -> str:
    """The place of a request on a sticky pool's hash ring; 16 hexadecimal digits, whatever the client sends.

    The client's word counts first: the header `x-session-id`, then `prompt_cache_key` in the body. Without either, all
    up to and with the first message of the user stands for the conversation. `user` doesn't count: one user has many
    conversations at a time, and they need not share a replica.

    Args:
        headers: By lower-case name.
        features: Of the request.
        attempt: 0 for the first; another attempt goes to another place, for the first one's replica has just failed.
    """
    said = headers.get(SESSION_HEADER) or features.conversation_key
    return blake2b(f"{attempt}:{said}".encode("utf-8", "surrogatepass"), digest_size=8).hexdigest()
