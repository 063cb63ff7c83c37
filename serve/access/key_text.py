"""API keys as clients hold them: `sgk_<id>_<secret>_<checksum>`, all of it letters and digits.

A double click selects all of it, and scanners for leaked secrets find it by the prefix, without false alarms thanks to
the checksum.
"""

import re
import secrets
import string
from collections.abc import Mapping
from hashlib import sha256
from zlib import crc32

_ALPHABET = string.digits + string.ascii_uppercase + string.ascii_lowercase
_PREFIX = "sgk_"
_ID_CHARACTERS = 10
_SECRET_CHARACTERS = 43  # 256 bits
_CHECKSUM_CHARACTERS = 6
_FORM = re.compile(r"(sgk_([0-9A-Za-z]{10})_[0-9A-Za-z]{43})_([0-9A-Za-z]{6})")
_ID = slice(len(_PREFIX), len(_PREFIX) + _ID_CHARACTERS)
_WITH_SECRET = re.compile(r"(sgk_[0-9A-Za-z]{10}_)[0-9A-Za-z]+(?:_[0-9A-Za-z]*)?")
_BEARER = "bearer "


def new_id() -> str:
    return _random(_ID_CHARACTERS)


def new_token(key_id: str) -> str:
    """Returns a token with a fresh secret of 256 bits."""
    text = f"{_PREFIX}{key_id}_{_random(_SECRET_CHARACTERS)}"
    return f"{text}_{checksum(text)}"


def checksum(text: str) -> str:
    """Returns the CRC32 of a token's text before the last underscore, in base 62."""
    rest, digits = crc32(text.encode()), ""
    for _ in range(_CHECKSUM_CHARACTERS):
        rest, digit = divmod(rest, len(_ALPHABET))
        digits = _ALPHABET[digit] + digits
    return digits


def is_token(text: str) -> bool:
    """Returns True for a text of the right form with the right checksum; it says nothing of any key."""
    match = _FORM.fullmatch(text)
    return match is not None and checksum(match[1]) == match[3]


def claimed_id(token: str) -> str:
    """Returns the id that a token claims; of any other text, something that is no key's id or belongs to another."""
    return token[_ID] if token.startswith(_PREFIX) else ""


def without_secrets(text: str) -> str:
    """Returns a text in which tokens, cut ones as well, end after their id: people paste them where ids belong."""
    return _WITH_SECRET.sub(r"\1...", text)


def digest(token: str) -> bytes:
    """Returns the SHA-256 of a whole token.

    A slow hash is for passwords that can be guessed; 256 random bits can't.
    """
    return sha256(token.encode("utf-8", "surrogatepass")).digest()


def token_in(headers: Mapping[str, str]) -> str | None:
    """Returns the token that a request brings, as bearer token or, as Anthropic's clients do, in `x-api-key`.

    Of two the bearer token counts; an empty one, which is what a client makes of a variable that is not set, is none.
    Headers are by lower-case name.
    """
    authorization = headers.get("authorization")
    if authorization is not None and authorization[: len(_BEARER)].lower() == _BEARER:
        return authorization[len(_BEARER) :].strip() or headers.get("x-api-key")
    return headers.get("x-api-key")


def _random(characters: int) -> str:
    return "".join([secrets.choice(_ALPHABET) for _ in range(characters)])
