"""The declarative file of tenants and hashes of keys, for GitOps and Kubernetes Secrets."""

from datetime import UTC, datetime
from pathlib import Path
from typing import Annotated, Any, Self

import yaml
from pydantic import (
    AfterValidator,
    BaseModel,
    BeforeValidator,
    ConfigDict,
    Field,
    ValidationError,
    field_validator,
    model_validator,
)

from serve.access.key_record import KeyRecord, SecretHash, key_object
from serve.access.principal import NO_LIMITS, Tenant
from serve.config.access import ModelPattern, RequestPriority, RightName, TenantName
from serve.config.problems import problems_of
from serve.config.rate_limits import Limits
from serve.config.regular_file import read_regular
from serve.config.yaml_files import RepeatedKeyError, parse_yaml
from serve.errors import ConfigError

_PREFIX = "sha256:"
_EARLIEST_S = 1e9  # in 2001, before which no key was made
_MOST_BYTES = 64 * 2**20
Hash = Annotated[str, Field(pattern=r"^sha256:[0-9a-f]{64}$")]
KeyName = Annotated[str, Field(max_length=128, pattern=r"^[^\x00-\x1f\x7f-\x9f\u202a-\u202e\u2066-\u2069]*$")]


class _Row(BaseModel):
    # What is wrong may be a token that somebody wrote where its hash belongs.
    model_config = ConfigDict(frozen=True, extra="forbid", hide_input_in_errors=True)


class TenantRow(_Row):
    """The terms of one tenant; see `Tenant`."""

    weight: Annotated[float, Field(gt=0, allow_inf_nan=False)] = 1.0
    limits: Limits = NO_LIMITS
    model_limits: dict[str, Limits] = Field(default_factory=dict)
    priority_ceiling: RequestPriority = "interactive"

    def tenant(self, name: str) -> Tenant:
        return Tenant(name, self.weight, self.limits, self.model_limits, self.priority_ceiling)


def _plausible(value: Any) -> Any:
    """Returns a value that stands for a time.

    Raises:
        ValueError: It is a number that is no time which anybody means: 20270328 seconds are a day in 1970.
    """
    try:
        seconds = float(value) if isinstance(value, (int, float, str)) else _EARLIEST_S
    except ValueError:
        return value  # a date, or nothing of the kind
    if abs(seconds) < _EARLIEST_S:
        raise ValueError("a date such as 2027-03-28, or seconds since 1970; this number would be long ago")
    return value


def _utc(value: datetime) -> datetime:
    """Returns a time in UTC; one without a zone is in UTC already.

    Raises:
        ValueError: In UTC it is in no year from 1970 to 9999.
    """
    try:
        found = value.replace(tzinfo=UTC) if value.tzinfo is None else value.astimezone(UTC)
    except OverflowError:
        raise ValueError("a time of the years 1970 to 9999 in UTC") from None
    if found.year < 1970:
        raise ValueError("a time of the years 1970 to 9999 in UTC")
    return found


_Time = Annotated[datetime, BeforeValidator(_plausible), AfterValidator(_utc)]


class KeyTerms(_Row):
    """All of a key that somebody chooses; see `KeyRecord`.

    Attributes:
        expires: A time without a zone is in UTC.
    """

    tenant: TenantName
    name: KeyName = ""
    scopes: tuple[RightName, ...] = ("infer",)
    models: Annotated[tuple[ModelPattern, ...], Field(min_length=1)] = ("*",)
    limits: Limits = NO_LIMITS
    priority_default: RequestPriority = "standard"
    priority_ceiling: RequestPriority = "interactive"
    expires: _Time | None = None

    def record(self, key_id: str, hashes: tuple[SecretHash, ...], created_s: float) -> KeyRecord:
        """Returns the key with these terms. Times are in Unix time."""
        return KeyRecord(
            id=key_id,
            tenant=self.tenant,
            name=self.name,
            hashes=hashes,
            scopes=frozenset(self.scopes),
            models=self.models,
            limits=self.limits,
            priority_default=self.priority_default,
            priority_ceiling=self.priority_ceiling,
            created_s=created_s,
            expires_s=self.expires.timestamp() if self.expires is not None else None,
        )


class OldHash(_Row):
    """A secret that was replaced, and the end of its validity."""

    hash: Hash
    until: _Time


class KeyRow(KeyTerms):
    """One key of the file.

    Attributes:
        id: The first part of the token, after `sgk_`.
        hash: SHA-256 of the whole token.
        previous: The secret before this one, while both are valid.
    """

    id: Annotated[str, Field(pattern=r"^[0-9A-Za-z]{10}$")]
    hash: Hash
    previous: OldHash | None = None

    def key(self) -> KeyRecord:
        hashes = [SecretHash(_bytes(self.hash))]
        if self.previous is not None:
            hashes.append(SecretHash(_bytes(self.previous.hash), self.previous.until.timestamp()))
        return self.record(self.id, tuple(hashes), 0.0)


class KeyFile(_Row):
    tenants: dict[TenantName, TenantRow] = Field(default_factory=dict)
    keys: tuple[KeyRow, ...] = ()

    @field_validator("tenants", mode="before")
    @classmethod
    def _without_terms(cls, value: Any) -> Any:
        """Accepts `name:` without anything after it."""
        return {name: {} if row is None else row for name, row in value.items()} if isinstance(value, dict) else value

    @model_validator(mode="after")
    def _ids_are_unique(self) -> Self:
        seen: set[str] = set()
        for row in self.keys:
            if row.id in seen:
                raise ValueError(f"the key id {row.id!r} is used twice")
            seen.add(row.id)
        return self


def read_key_file(path: Path) -> tuple[tuple[Tenant, ...], tuple[KeyRecord, ...]]:
    """Returns the tenants and the keys in a file.

    Raises:
        ConfigError: The file can't be read, or something in it is wrong; the message repeats no value of it.
    """
    try:
        document = parse_yaml(read_regular(path, _MOST_BYTES).decode())
        content = KeyFile.model_validate({} if document is None else document)
    except OSError as error:
        raise ConfigError(f"the access file {path} can't be read: {error.strerror}") from error
    except ValidationError as error:
        lines = (f"  {problem}" for problem in problems_of(error, KeyFile))
        raise ConfigError(f"the access file {path} is not valid:\n" + "\n".join(lines)) from None
    except yaml.MarkedYAMLError as error:
        line = error.problem_mark.line + 1 if error.problem_mark is not None else 0
        said = "has a key twice in one mapping, again" if isinstance(error, RepeatedKeyError) else "is not YAML, seen"
        raise ConfigError(f"the access file {path} {said} in line {line}") from None
    except (ValueError, RecursionError, yaml.YAMLError):
        raise ConfigError(f"the access file {path} is not YAML in UTF-8") from None
    tenants = tuple(row.tenant(name) for name, row in content.tenants.items())
    return tenants, tuple(row.key() for row in content.keys)


def key_row(key: KeyRecord) -> str:
    """Returns a key as YAML, to be added to the file's `keys`: what is not as usual, and the hash."""
    newest, *older = key.hashes
    usual = key_object(KeyTerms(tenant=key.tenant).record(key.id, key.hashes, key.created_s))
    own = {name: value for name, value in key_object(key).items() if name in KeyTerms.model_fields}
    own = {name: value for name, value in own.items() if value != usual[name]}
    row: dict[str, Any] = {"id": key.id, "tenant": key.tenant, **own, "hash": _PREFIX + newest.sha256.hex()}
    if key.expires_s is not None:
        row["expires"] = datetime.fromtimestamp(key.expires_s, UTC)
    if older and older[0].until_s is not None:
        until = datetime.fromtimestamp(older[0].until_s, UTC)
        row["previous"] = {"hash": _PREFIX + older[0].sha256.hex(), "until": until}
    return yaml.safe_dump([row], sort_keys=False, allow_unicode=True)


def _bytes(text: str) -> bytes:
    return bytes.fromhex(text.removeprefix(_PREFIX))
