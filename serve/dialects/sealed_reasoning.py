"""Reasoning that a client keeps for us: sealed in a string that comes back with the next turn.

Nothing is stored here. The seal is no secret, because its content is sent as plain text too; the checksum tells our own
seals from other providers' signatures and from damaged ones.
"""

import binascii
from base64 import urlsafe_b64decode, urlsafe_b64encode
from hashlib import blake2b

_PREFIX = "specgate-reasoning-v1:"
_CHECK_BYTES = 8


def seal(text: str) -> str:
    """Returns a string of letters, digits and `-_:=` from which `unseal` gets the text."""
    data = text.encode("utf-8", "replace")
    return _PREFIX + urlsafe_b64encode(_check(data) + data).decode()


def unseal(sealed: object) -> str | None:
    """Returns the text in a seal; None for anything that `seal` did not make."""
    if not isinstance(sealed, str) or not sealed.startswith(_PREFIX):
        return None
    try:
        content = urlsafe_b64decode(sealed[len(_PREFIX) :])
    except (binascii.Error, ValueError):
        return None
    check, data = content[:_CHECK_BYTES], content[_CHECK_BYTES:]
    return data.decode("utf-8", "replace") if check == _check(data) else None


def _check(data: bytes) -> bytes:
    return blake2b(data, digest_size=_CHECK_BYTES).digest()
