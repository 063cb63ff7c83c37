"""Documents that somebody signs for gateways: JWTs (RFC 7519) signed with Ed25519 (RFC 8037), keys in PEM.

Each carries `iat` and `exp`. That one has expired is for its reader to weigh, not a reason to refuse it here.
"""

import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import jwt

from serve.config.regular_file import read_regular
from serve.errors import ConfigError

DAY_S = 86_400
SIGNED = ".jws"
"""The ending of such documents' names."""
_ALGORITHM = "EdDSA"
_MOST_BYTES = 4 * 1024 * 1024


def sign_document(path: Path, claims: Mapping[str, Any], private_key: Path, days: int) -> tuple[int, int]:
    """Writes a signed document, whole or not at all; returns when it was issued and when it expires, in Unix seconds.
    It holds for some days from now on. The private key is an Ed25519 key in PEM.

    Raises:
        ConfigError: The key is none of that kind, or the document can't be written.
    """
    now = int(time.time())
    expires_s = now + days * DAY_S
    try:
        token = jwt.encode({"iat": now, "exp": expires_s, **claims}, private_key.read_bytes(), algorithm=_ALGORITHM)
    except (OSError, ValueError, TypeError, jwt.PyJWTError) as error:
        hint = "make one with `openssl genpkey -algorithm ed25519`"
        raise ConfigError(f"{private_key} is no private Ed25519 key in PEM ({error}); {hint}") from error
    unfinished = path.with_name(f".{path.name}")
    try:
        unfinished.write_text(token + "\n", encoding="ascii")
        unfinished.replace(path)
    except OSError as error:
        raise ConfigError(f"{path} can't be written: {error.strerror}") from error
    return now, expires_s


def verified(path: Path, public_key: Path, setting: str, maker: str, claims: list[str]) -> dict[str, Any]:
    """Returns the claims of a document that the owner of a key has signed. It must have `claims` beside `iat` and
    `exp`. Messages name the `setting` of the key, and the `maker`, a command, of such documents.

    Raises:
        ConfigError: There is none, or the owner of the key has not signed it.
    """
    try:
        key = read_regular(public_key, _MOST_BYTES)
    except OSError as error:
        raise ConfigError(f"{setting}: {public_key} can't be read: {error.strerror}") from error
    try:
        token = read_regular(path, _MOST_BYTES).strip()
        options: Any = {"verify_exp": False, "require": ["iat", "exp", *claims]}
        return dict(jwt.decode(token, key, algorithms=[_ALGORITHM], options=options))
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}; `{maker}` makes it") from error
    except jwt.PyJWTError as error:
        raise ConfigError(f"{path} is not signed by {public_key}: {error}") from error
    except (ValueError, TypeError) as error:
        raise ConfigError(f"{public_key} is no public Ed25519 key in PEM: {error}") from error
