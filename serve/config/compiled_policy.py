"""The policy that a configuration, its folders of advisories and verdicts, and the engines' own reports compile to.

A folder of advisories may be signed: its `index.jws` is a signed document (`serve.config.signature`) of `files`, file
name -> SHA-256 of its bytes in hexadecimal. What is not in the index is not read, so that to revoke an advisory is to
publish an index without it.
"""

import dataclasses
import hashlib
import time
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError

import policies
from policies import Advisory, Policy, PolicyError, PoolFacts, compile_policy, load_advisories
from policies.advisory import MOST_BYTES, unreadable
from policies.freshness import without_knowledge
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.config.regular_file import read_regular
from serve.config.signature import sign_document, verified
from serve.config.signed_verdicts import QualifiedEngine, key_of, qualification_of, read_qualifications
from serve.errors import ConfigError

INDEX = "index.jws"
SHIPPED_ADVISORIES = Path(policies.__file__).parent / "advisories"


def compile_for(
    config: GatewayConfig,
    learned: Mapping[tuple[str, str], Mapping[str, Any]] | None = None,
    advisories: Sequence[Advisory] | None = None,
    qualified: Sequence[QualifiedEngine] | None = None,
) -> Policy:
    """Compiles the policy of a configuration. Facts that running replicas have learned, by (model, pool), override the
    configuration, but not an operator's explicit `facts`. Advisories and qualified engines that are not given are read
    from the configuration's folders.

    Raises:
        ConfigError: The policy settings or the advisories are invalid.
    """
    engines = read_qualifications(config.policy) if qualified is None else qualified
    try:
        facts = [
            with_verdicts(config, config.facts_now(pool, (learned or {}).get((pool.model, pool.pool), {})), engines)
            for pool in config.pool_facts()
            if not config.is_candidate(pool.model, pool.pool)  # for decisions there is no such pool
        ]
        return compile_policy(facts, advisories or read_advisories(config.policy), config.policy_settings())
    except PolicyError as error:
        raise ConfigError(str(error)) from error


def with_verdicts(config: GatewayConfig, facts: PoolFacts, qualified: Sequence[QualifiedEngine]) -> PoolFacts:
    """Returns a pool's facts with the verdicts on its engine, if there are any."""
    if not qualified:
        return facts
    return dataclasses.replace(facts, qualification=qualification_of(qualified, key_of(config, facts)))


def read_advisories(policy: PolicyConfig, *, strict: bool = False) -> tuple[Advisory, ...]:
    """Reads the advisories of a configuration. If strict, it refuses all of them if one can't be read. Otherwise each
    such one counts as matched: a starting gateway had better lose speed than be down, whereas an update of a running
    one can be refused.

    Raises:
        ConfigError: The folder holds none, or one of them can't be read.
    """
    if policy.advisories and policy.advisories_key:
        try:
            return read_signed(Path(policy.advisories), Path(policy.advisories_key))
        except ConfigError as error:
            if strict:
                raise
            return (unreadable("advisories", str(error)),)
    try:
        advisories = load_advisories(Path(policy.advisories) if policy.advisories else SHIPPED_ADVISORIES)
    except PolicyError as error:
        raise ConfigError(str(error)) from error
    problems = [f"{advisory.id}: {advisory.problem}" for advisory in advisories if advisory.problem]
    if problems and strict:
        raise ConfigError(f"advisories that can't be read: {', '.join(problems)}")
    return advisories


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


def signed_index(policy: PolicyConfig) -> SignedIndex | None:
    """Returns the index that vouches for a configuration's advisories; None if nobody needs to, or nobody does."""
    if not (policy.advisories and policy.advisories_key):
        return None
    try:
        return read_index(Path(policy.advisories), Path(policy.advisories_key))
    except ConfigError:
        return None


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
