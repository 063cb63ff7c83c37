"""The declarative file: what is wrong with it is said without repeating a value, since one may be a token."""

from collections.abc import Callable
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import pytest
import yaml
from hypothesis import given
from hypothesis import strategies as st
from pydantic import ValidationError
from support.odd_files import ODD_KINDS, put_odd

from serve.access.key_file import KeyTerms, OldHash, key_row, read_key_file
from serve.access.key_record import KeyRecord, SecretHash
from serve.access.key_text import digest, new_id, new_token
from serve.access.oidc import read_provider_keys
from serve.access.principal import Tenant
from serve.config.access import PRIORITIES, RIGHTS
from serve.config.rate_limits import Limits
from serve.errors import ConfigError

HASH = "sha256:" + "ab" * 32
USUAL = {
    "name": "", "scopes": ["infer"], "models": ["*"], "limits": {}, "priority_default": "standard",
    "priority_ceiling": "interactive",
}  # fmt: skip


def written(folder: Path, text: str) -> Path:
    path = folder / "keys.yaml"
    path.write_text(text, encoding="utf-8")
    return path


def test_tenants_and_keys_are_read_with_all_their_terms(tmp_path: Path) -> None:
    path = written(
        tmp_path,
        f"""
tenants:
  red: {{weight: 2, limits: {{tokens_per_minute: 1000}}, model_limits: {{big: {{concurrency: 3}}}}}}
  blue:
keys:
- id: 0123456789
  tenant: red
  name: ci
  hash: {HASH}
  scopes: [infer, explain]
  models: [tiny-*]
  expires: 2027-02-20
  previous: {{hash: "{HASH}", until: 2027-01-01T00:00:00Z}}
""".replace("id: 0123456789", "id: '0123456789'"),
    )
    tenants, [key] = read_key_file(path)
    assert tenants == (
        Tenant("red", 2.0, Limits(tokens_per_minute=1000), {"big": Limits(concurrency=3)}),
        Tenant("blue"),
    )
    assert (key.id, key.tenant, key.scopes, key.models) == ("0123456789", "red", {"infer", "explain"}, ("tiny-*",))
    assert key.expires_s == datetime(2027, 2, 20, tzinfo=UTC).timestamp()
    until_s = datetime(2027, 1, 1, tzinfo=UTC).timestamp()
    assert key.hashes == (SecretHash(b"\xab" * 32), SecretHash(b"\xab" * 32, until_s))


def test_an_empty_file_holds_nothing(tmp_path: Path) -> None:
    assert read_key_file(written(tmp_path, "")) == ((), ())


TOKEN = new_token(new_id())


# A token in the parameters would be in the names of the tests, and differ from one test process to the next.
@pytest.mark.parametrize(
    "text",
    [
        "keys: [{id: abcdefghij, tenant: red, hash: TOKEN}]",
        "keys: [{id: TOKEN, tenant: red, hash: HASH}]",
        "keys: [{id: abcdefghij, tenant: red, hash: HASH, token: TOKEN}]",
        "keys: [{id: abcdefghij, tenant: red, hash: HASH, scopes: [TOKEN]}]",
        "keys: TOKEN",
        "TOKEN",
        "keys: [TOKEN",
        "tenants: [TOKEN]",
    ],
)
def test_a_wrong_file_is_refused_without_repeating_what_may_be_a_secret(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        read_key_file(written(tmp_path, text.replace("TOKEN", TOKEN).replace("HASH", f"'{HASH}'")))
    assert TOKEN not in str(caught.value)
    assert TOKEN[15:40] not in repr(caught.value)
    assert caught.value.__cause__ is None


@pytest.mark.parametrize(
    "text",
    [
        f"keys: [{{id: abcdefghij, tenant: red, hash: '{HASH}'}}, {{id: abcdefghij, tenant: blue, hash: '{HASH}'}}]",
        f"keys: [{{id: short, tenant: red, hash: '{HASH}'}}]",
        f"keys: [{{id: abcdefghij, tenant: '', hash: '{HASH}'}}]",
        f"keys: [{{id: abcdefghij, tenant: red, hash: '{HASH}', models: []}}]",
        f"keys: [{{id: abcdefghij, tenant: red, hash: '{HASH}', models: ['a[b]']}}]",
        f"keys: [{{id: abcdefghij, tenant: red, hash: '{HASH}', scopes: [root]}}]",
        "keys: [{id: abcdefghij, tenant: red, hash: 'sha256:abc'}]",
        "tenants: {red: {weight: 0}}",
        "tenants: {red: {wieght: 1}}",
        "tenant: {}",
    ],
)
def test_whatever_does_not_belong_there_is_refused(tmp_path: Path, text: str) -> None:
    with pytest.raises(ConfigError):
        read_key_file(written(tmp_path, text))


def test_a_tenant_that_stands_twice_is_refused_and_does_not_lose_its_first_terms(tmp_path: Path) -> None:
    text = "tenants:\n  red: {limits: {concurrency: 1}}\n  blue:\n  red: {weight: 2}\n"
    with pytest.raises(ConfigError, match="twice in one mapping, again in line 4"):
        read_key_file(written(tmp_path, text))


def test_what_is_no_yaml_is_told_with_its_line_and_without_its_text(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"is not YAML, seen in line 3$"):
        read_key_file(written(tmp_path, "keys:\n- id: a\n\thash: secret\n"))


def test_names_that_yaml_takes_for_something_else_are_names_or_to_be_quoted(tmp_path: Path) -> None:
    tenants, _ = read_key_file(written(tmp_path, "tenants: {no: {weight: 2}, 1.50: }"))
    assert tenants == (Tenant("no", 2.0), Tenant("1.50"))
    with pytest.raises(ConfigError, match=r"keys\.0\.tenant: .*put it in quotes, or it is read as true or false"):
        read_key_file(written(tmp_path, f"keys: [{{id: abcdefghij, tenant: no, hash: '{HASH}'}}]"))


def test_a_file_that_is_missing_is_named(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml"):
        read_key_file(tmp_path / "nowhere.yaml")


def test_a_row_that_is_printed_can_be_read_back(tmp_path: Path) -> None:
    terms = KeyTerms(tenant="red", name="ci: #1", scopes=("infer", "explain"), expires=datetime(2027, 2, 20))
    terms = terms.model_copy(update={"limits": Limits(concurrency=3), "priority_ceiling": "batch"})
    hashes = (SecretHash(digest(TOKEN)), SecretHash(b"\x01" * 32, 1800000000.0))
    key = terms.record("abcdefghij", hashes, 0.0)
    document = "keys:\n" + key_row(key)
    assert isinstance(yaml.safe_load(document), dict)
    assert read_key_file(written(tmp_path, document)) == ((), (key,))
    assert TOKEN not in document


@given(
    st.builds(
        KeyTerms,
        tenant=st.just("red"),
        name=st.sampled_from(["", "ci: #1"]),
        scopes=st.lists(st.sampled_from(sorted(RIGHTS)), unique=True).map(tuple),
        models=st.sampled_from([("*",), ("kimi-*", "qwen")]),
        limits=st.builds(Limits, concurrency=st.sampled_from([None, 3])),
        priority_default=st.sampled_from(PRIORITIES),
        priority_ceiling=st.sampled_from(PRIORITIES),
    )
)
def test_a_row_says_what_is_not_usual_and_nothing_else(terms: KeyTerms) -> None:
    key = terms.record("abcdefghij", (SecretHash(digest(TOKEN)),), 0.0)
    (row,) = yaml.safe_load(key_row(key))
    said = {name: row[name] for name in row.keys() & KeyTerms.model_fields.keys()}
    assert KeyTerms.model_validate(said).record(key.id, key.hashes, 0.0) == key
    assert [name for name, value in said.items() if value == USUAL.get(name)] == []


def test_a_time_without_a_zone_is_in_utc() -> None:
    key = KeyTerms(tenant="red", expires=datetime(2027, 2, 20)).record("abcdefghij", (), 0.0)
    assert isinstance(key, KeyRecord)
    assert key.expires_s == datetime(2027, 2, 20, tzinfo=UTC).timestamp()


@pytest.mark.parametrize("number", [0, 30, 20270328, "30", "20270328", -1, 999_999_999.9])
def test_a_number_that_is_no_time_of_our_days_ends_no_key(number: Any) -> None:
    with pytest.raises(ValidationError, match="a date such as"):
        KeyTerms(tenant="red", expires=number)
    with pytest.raises(ValidationError, match="a date such as"):
        OldHash(hash=HASH, until=number)


@pytest.mark.parametrize("number", [1_806_192_000, 1_806_192_000_000, "1806192000"])
def test_seconds_and_milliseconds_since_1970_are_a_time(number: Any) -> None:
    assert KeyTerms(tenant="red", expires=number).expires == datetime(2027, 3, 28, tzinfo=UTC)


@pytest.mark.parametrize("kind", ODD_KINDS)
@pytest.mark.parametrize("read", [read_key_file, read_provider_keys])
def test_what_is_no_file_is_refused_and_holds_nobody(tmp_path: Path, kind: str, read: Callable[[Path], Any]) -> None:
    path = tmp_path / "keys"
    put_odd(kind, path)
    with pytest.raises(ConfigError, match="not a regular file"):
        read(path)


@pytest.mark.parametrize("text", ["[" * 50_000, "a: " + "9" * 5000, "\x00", "&a [*a, *a]", "a: !!python/none"])
@pytest.mark.parametrize("read", [read_key_file, read_provider_keys])
def test_whatever_is_in_a_file_is_read_or_refused(tmp_path: Path, text: str, read: Callable[[Path], Any]) -> None:
    with pytest.raises(ConfigError):
        read(written(tmp_path, text))


@pytest.mark.parametrize("character", ["\x00", "\x1b", "\x9b", "\u202e", "\u2066"])
def test_a_keys_name_holds_nothing_that_a_terminal_obeys(character: str) -> None:
    with pytest.raises(ValidationError, match="pattern"):
        KeyTerms(tenant="red", name=f"ci{character}31m")
    assert KeyTerms(tenant="red", name="Büro \u05d0 – 東京").name
