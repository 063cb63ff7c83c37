"""Signed verdicts on engines (`specgate qualify`), and which pools they are about.

Each `*.jws` of the folder is a signed document (`serve.config.signature`) about one engine: its `key` has everything by
which another one would be told from it, and `tests` what was found. It counts for a pool whose own key is the same; one
that differs in any part is another engine. To revoke a verdict is to delete its file.
"""

import dataclasses
import hashlib
import json
import logging
from collections.abc import Iterable, Mapping
from dataclasses import dataclass
from datetime import UTC, date, datetime
from pathlib import Path
from typing import Any

from pydantic import BaseModel, ConfigDict, Field, ValidationError, field_validator

from policies import PoolFacts
from policies.qualification import Qualification, TestFinding, known_tests
from serve.config.gateway import GatewayConfig, PolicyConfig
from serve.config.signature import SIGNED, sign_document, verified
from serve.errors import ConfigError

log = logging.getLogger("ray.serve.specgate.gateway")

_MOST_DOCUMENTS = 1000
_NO_PART = frozenset(
    {"pool", "kind", "proven", "canary_share", "qualification"}
)  # what the operator calls or says of it
Key = Mapping[str, Any]


class EngineVerdict(BaseModel):
    """The verdict of one test.

    Attributes:
        finding: `undecided` forbids nothing, and vouches for nothing.
        n: Pairs of answers, or copied identifiers, that it rests on.
        bad: Of them, where the drafting engine alone was wrong.
        at_least, at_most: Bounds on the share of answers by which it is worse, which hold at all times at once.
        why: The first wrong answer, or why nothing is known.
    """

    model_config = ConfigDict(extra="forbid", strict=True, frozen=True)

    finding: TestFinding
    n: int = Field(ge=0)
    bad: int = Field(ge=0)
    at_least: float
    at_most: float
    why: str = Field(default="", max_length=1000)


class _Claims(BaseModel):
    model_config = ConfigDict(extra="ignore", strict=True)

    iat: int = Field(ge=0)
    exp: int = Field(ge=0)
    key: dict[str, Any]
    tests: dict[str, EngineVerdict] = Field(min_length=1)
    terms: dict[str, float] = Field(default_factory=dict)

    @field_validator("tests")
    @classmethod
    def _are_known(cls, tests: dict[str, EngineVerdict]) -> dict[str, EngineVerdict]:
        if not known_tests(tests):
            raise ValueError(f"unknown tests: {', '.join(tests)}")
        return tests


@dataclass(frozen=True, slots=True)
class QualifiedEngine:
    """A document whose signature is right."""

    key: Key
    issued_s: int
    qualification: Qualification


def key_of(config: GatewayConfig, facts: PoolFacts) -> Key | None:
    """Returns all by which a pool's engine is told from others; None if it drafts nothing, or its version is not known.
    The facts include what its engine has told of itself.
    """
    if not facts.speculative or not facts.engine or not facts.engine_version:
        return None
    model = config.models[facts.model]
    pool = model.pools[facts.pool]
    if pool.kind != "vllm":
        weights, args, stated = pool.served_name or facts.model, {}, facts
    else:  # what an engine of ours tells follows from its arguments and its version
        args = model.engine_args_of(facts.pool)
        weights = str(args.get("model", facts.model))
        configured = config.facts_of(facts.model, facts.pool)
        stated = dataclasses.replace(configured, engine=facts.engine, engine_version=facts.engine_version)
    parts = {name: value for name, value in stated.to_dict().items() if name not in _NO_PART}
    arguments = json.dumps([args, dict(pool.env)], sort_keys=True, default=str)
    return {**parts, "model": weights, "arguments": hashlib.sha256(arguments.encode()).hexdigest()}


def write_qualification(
    folder: Path, key: Key, tests: Mapping[str, EngineVerdict], terms: Mapping[str, float], private_key: Path, days: int
) -> Path:
    """Writes a signed document of an engine, over the last one about the same engine; returns where. The private key is
    an Ed25519 key in PEM.

    Raises:
        ConfigError: The key is none of that kind, or the folder can't be written to.
    """
    digest = hashlib.sha256(json.dumps(key, sort_keys=True).encode()).hexdigest()[:12]
    path = folder / f"{key['engine']}-{key['engine_version']}-{digest}{SIGNED}".replace("/", "_")
    found = {name: verdict.model_dump() for name, verdict in tests.items()}
    sign_document(path, {"key": key, "tests": found, "terms": terms}, private_key, days)
    return path


def read_qualifications(policy: PolicyConfig, *, strict: bool = False) -> tuple[QualifiedEngine, ...]:
    """Reads the verdicts of a configuration. If strict, it refuses all if one can't be read; otherwise such a one
    counts for nothing, as if it were not there.

    Raises:
        ConfigError: The folder, or one of them, can't be read.
    """
    if policy.qualifications is None or policy.qualifications_key is None:
        return ()
    folder, key, found = Path(policy.qualifications), Path(policy.qualifications_key), []
    if strict:
        return tuple(_read(path, key) for path in _documents(folder))
    try:
        paths = _documents(folder)
    except ConfigError as error:
        log.error("no verdict on an engine counts: %s", error)
        return ()
    for path in paths:
        try:
            found.append(_read(path, key))
        except ConfigError as error:
            log.error("a verdict on an engine counts for nothing: %s", error)
    return tuple(found)


def qualification_of(engines: Iterable[QualifiedEngine], key: Key | None) -> Qualification | None:
    """Returns the newest verdicts on an engine; None if there are none."""
    plain = None if key is None else json.loads(json.dumps(key))
    own = [each for each in engines if each.key == plain]
    return max(own, key=lambda each: each.issued_s).qualification if own else None


def _documents(folder: Path) -> list[Path]:
    if not folder.is_dir():
        raise ConfigError(f"policy.qualifications: there is no folder {folder}; make it, `specgate qualify` fills it")
    paths = sorted(path for path in folder.glob(f"*{SIGNED}") if not path.name.startswith("."))
    if len(paths) > _MOST_DOCUMENTS:
        raise ConfigError(f"policy.qualifications: {folder} has {len(paths)} verdicts, more than {_MOST_DOCUMENTS}")
    return paths


def _read(path: Path, public_key: Path) -> QualifiedEngine:
    document = verified(path, public_key, "policy.qualifications_key", "specgate qualify", ["key", "tests"])
    try:
        claims = _Claims.model_validate(document)
        on, expires = _day(claims.iat), _day(claims.exp)
    except (ValidationError, OverflowError, OSError, ValueError) as error:
        raise ConfigError(f"{path} is no verdict on an engine: {error}") from error
    tests = {name: verdict.finding for name, verdict in claims.tests.items()}
    trials = sum(verdict.n for verdict in claims.tests.values())
    return QualifiedEngine(claims.key, claims.iat, Qualification(tests, trials, on, expires))


def _day(moment_s: int) -> date:
    return datetime.fromtimestamp(moment_s, UTC).date()
