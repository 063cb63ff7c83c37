"""A folder of advisories, and who signs it."""

import shutil
from pathlib import Path
from typing import Any

import jwt
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey
from cryptography.hazmat.primitives.serialization import Encoding, NoEncryption, PrivateFormat, PublicFormat

from serve.config.compiled_policy import INDEX, SHIPPED_ADVISORIES, read_advisories
from serve.config.gateway import PolicyConfig


class Signer:
    """A folder of two advisories, and who signs it."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder / "advisories"
        self.folder.mkdir()
        self.first, self.second, self.third = sorted(SHIPPED_ADVISORIES.glob("*.yaml"))[:3]
        shutil.copy(self.first, self.folder)
        shutil.copy(self.second, self.folder)
        self.private, self.public = folder / "private.pem", folder / "public.pem"
        self.key = Ed25519PrivateKey.generate()
        self.private.write_bytes(self.key.private_bytes(Encoding.PEM, PrivateFormat.PKCS8, NoEncryption()))
        self.public.write_bytes(self.key.public_key().public_bytes(Encoding.PEM, PublicFormat.SubjectPublicKeyInfo))

    @property
    def config(self) -> PolicyConfig:
        return PolicyConfig(advisories=str(self.folder), advisories_key=str(self.public))

    def read(self) -> list[str]:
        return [each.id for each in read_advisories(self.config, strict=True)]

    def write_index(self, claims: Any, algorithm: str = "EdDSA") -> None:
        key: Any = self.key if algorithm == "EdDSA" else self.public.read_bytes().replace(b"-", b"")
        (self.folder / INDEX).write_text(jwt.encode(claims, key, algorithm=algorithm))
