"""The signed index of a folder of advisories: who vouches for which files, and until when.

`index.jws` is a signed document (`serve.config.signature`) of `files`: file name -> SHA-256 of its bytes in
hexadecimal. What is not in the index is not read, so that to revoke an advisory is to publish an index without it.
"""

import hashlib
import time
from collections.abc import Mapping
from dataclasses import dataclass
from pathlib import Path

from pydantic import BaseModel, ConfigDict, Field, ValidationError

from policies import Advisory, load_advisories
from policies.advisory import MOST_BYTES
from policies.freshness import without_knowledge
from serve.config.regular_file import read_regular
from serve.config.signature import sign_document, verified
from serve.errors import ConfigError

INDEX = "index.jws"


class _Claims(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    iat: int = Field(ge=0)
    exp: int = Field(ge=0)
    files: dict[str, str] = Field(min_length=1)


@dataclass(frozen=True, slots=True)
class SignedIndex:
    """An index whose signature is right.

    Attributes:
        issued_s: Unix time at which it was signed.
        expires_s: Unix time from which on nobody vouches for it.
        digests: File name -> SHA-256 in hexadecimal.
    """

    issued_s: int
    expires_s: int
    digests: Mapping[str, str]

    @property
    def expired(self) -> bool:
        """True once nobody vouches for it any more."""
        return time.time() >= self.expires_s


def sign(folder: Path, private_key: Path, days: int) -> SignedIndex:
    """Writes the index of a folder's advisories. All `*.yaml` in it must be readable advisories. The private key is an
    Ed25519 key in PEM.

    Raises:
        PolicyError: The folder holds none.
        ConfigError: One of them can't be read, or the key is none of that kind.
    """
    _refuse_unreadable(load_advisories(folder))
    digests = {path.name: _digest(path) for path in sorted(folder.glob("*.yaml"))}
    return SignedIndex(*sign_document(folder / INDEX, {"files": digests}, private_key, days), digests)


def read_index(folder: Path, public_key: Path) -> SignedIndex:
    """Reads the index of a folder.

    Raises:
        ConfigError: There is none, or the owner of the key has not signed it.
    """
    path = folder / INDEX
    try:
        claims = _Claims.model_validate(
            verified(path, public_key, "policy.advisories_key", "specgate advisories pack", ["files"])
        )
    except ValidationError as error:
        raise ConfigError(f"{path} is no index of advisories: {error}") from error
    return SignedIndex(claims.iat, claims.exp, claims.files)


def read_signed(folder: Path, public_key: Path) -> tuple[Advisory, ...]:
    """Reads the advisories of a folder that its index vouches for, and once that has expired, the suspicion of others.

    Raises:
        ConfigError: The index is none, or the folder is not what it says.
    """
    index = read_index(folder, public_key)
    found = {path.name: _digest(path) for path in folder.glob("*.yaml")}
    for problem, names in {
        "not signed": found.keys() - index.digests.keys(),
        "missing": index.digests.keys() - found.keys(),
        "changed since it was signed": {
            name for name, digest in found.items() if index.digests.get(name, digest) != digest
        },
    }.items():
        if names:
            raise ConfigError(f"{folder}: {', '.join(sorted(names))}: {problem}")
    advisories = _refuse_unreadable(load_advisories(folder))
    return (*advisories, without_knowledge()) if index.expired else advisories


def _refuse_unreadable(advisories: tuple[Advisory, ...]) -> tuple[Advisory, ...]:
    for advisory in advisories:
        if advisory.problem:
            raise ConfigError(f"{advisory.id}.yaml can't be read: {advisory.problem}")
    return advisories


def _digest(path: Path) -> str:
    try:
        return hashlib.sha256(read_regular(path, MOST_BYTES)).hexdigest()
    except OSError as error:
        raise ConfigError(f"{path} can't be read: {error.strerror}") from error
