"""`specgate keys` and `specgate tenants` without a gateway: a store's file, and rows for the declarative one."""

import json
from pathlib import Path
from typing import Any

import pytest
from typer.testing import CliRunner

from serve.access.key_file import read_key_file
from serve.access.key_ring import KeyRing
from serve.access.key_store import FILE_NAME, KeyStore
from serve.access.key_text import is_token
from serve.cli import app
from serve.cli.keys import first_key, limits_of
from serve.config.access import RIGHTS, AccessConfig
from serve.errors import ConfigError


def run(*args: str, code: int = 0) -> Any:
    result = CliRunner().invoke(app, list(args))
    assert result.exit_code == code, result.output
    return result


def ring_of(folder: Path) -> KeyRing:
    ring = KeyRing(stale_max_s=60)
    store = KeyStore(folder)
    ring.adopt(store.changes_since(0))
    store.close()
    return ring


def test_a_key_is_made_listed_rotated_and_revoked_in_a_file(tmp_path: Path) -> None:
    at = ("--state-dir", str(tmp_path), "--json")
    made = json.loads(run("keys", "create", "--tenant", "red", "--name", "ci", "--scope", "observe", *at).stdout)
    assert is_token(made["token"])
    principal = ring_of(tmp_path).authenticate({"x-api-key": made["token"]})
    assert (principal.key_id, principal.scopes) == (made["id"], {"observe"})
    [listed] = json.loads(run("keys", "list", *at).stdout)
    assert listed == {name: value for name, value in made.items() if name != "token"}
    rotated = json.loads(run("keys", "rotate", made["id"], *at).stdout)
    for token in (made["token"], rotated["token"]):
        ring_of(tmp_path).authenticate({"x-api-key": token})
    run("keys", "revoke", made["id"], *at)
    assert json.loads(run("keys", "list", *at).stdout) == []
    run("keys", "revoke", made["id"], *at, code=2)


@pytest.mark.parametrize(
    "command",
    [
        ("keys", "list"),
        ("keys", "revoke", "a"),
        ("keys", "rotate", "a"),
        ("tenants", "list"),
        ("tenants", "remove", "a"),
    ],
)
def test_whoever_looks_for_keys_in_another_folder_is_told_and_makes_no_store(
    tmp_path: Path, command: tuple[str, ...]
) -> None:
    folder = tmp_path / "mistyped"
    assert "does not exist" in run(*command, "--state-dir", str(folder), code=2).output.replace("\n", " ")
    assert not folder.exists()


def test_a_key_is_revoked_by_its_whole_token_too(tmp_path: Path) -> None:
    at = ("--state-dir", str(tmp_path), "--json")
    made = json.loads(run("keys", "create", "--tenant", "red", *at).stdout)
    assert json.loads(run("keys", "revoke", made["token"], *at).stdout)["id"] == made["id"]
    assert made["token"].split("_")[2] not in run("keys", "revoke", made["token"], *at, code=2).output


def test_without_json_the_token_alone_is_on_standard_output(tmp_path: Path) -> None:
    result = run("keys", "create", "--tenant", "red", "--state-dir", str(tmp_path))
    assert is_token(result.stdout.strip())


@pytest.mark.parametrize("name", ["[ci] nightly", "[/red]", "[bold]", "a[link=b]c"])
def test_a_name_in_brackets_is_shown_as_it_is(tmp_path: Path, name: str) -> None:
    at = ("--state-dir", str(tmp_path))
    made = json.loads(run("keys", "create", "--tenant", "red", "--name", name, "--json", *at).stdout)
    assert name in run("keys", "list", *at).stdout
    assert name in run("keys", "revoke", made["id"], *at).stdout


def test_a_row_for_the_declarative_file_holds_the_hash_of_a_token_that_works(tmp_path: Path) -> None:
    made = json.loads(run("keys", "create", "--tenant", "red", "--limit", "concurrency=3", "--file", "--json").stdout)
    path = tmp_path / "keys.yaml"
    path.write_text("keys:\n" + made["row"], encoding="utf-8")
    ring = KeyRing()
    ring.declare(*read_key_file(path))
    assert ring.authenticate({"x-api-key": made["token"]}).limits.concurrency == 3
    assert made["token"] not in path.read_text(encoding="utf-8")
    rotated = json.loads(run("keys", "rotate", made["id"], "--file", str(path), "--json").stdout)
    path.write_text("keys:\n" + rotated["row"], encoding="utf-8")
    ring.declare(*read_key_file(path))
    for token in (made["token"], rotated["token"]):
        assert ring.authenticate({"x-api-key": token}).limits.concurrency == 3


def test_a_persons_key_ends_and_a_services_key_does_not(tmp_path: Path) -> None:
    at = ("--tenant", "red", "--state-dir", str(tmp_path), "--json")
    assert json.loads(run("keys", "create", *at).stdout)["expires"] is None
    assert json.loads(run("keys", "create", "--person", *at).stdout)["expires"] is not None


@pytest.mark.parametrize(
    "wrong",
    [
        ("--tenant", "../red"),
        ("--tenant", "red", "--scope", "root"),
        ("--tenant", "red", "--model", "a b"),
        ("--tenant", "red", "--limit", "tokens"),
        ("--tenant", "red", "--limit", "tokens=5"),
        ("--tenant", "red", "--limit", "concurrency=0"),
    ],
)
def test_what_can_not_be_is_refused(tmp_path: Path, wrong: tuple[str, ...]) -> None:
    run("keys", "create", *wrong, "--state-dir", str(tmp_path), code=2)


def test_a_tenants_terms_are_set_and_removed(tmp_path: Path) -> None:
    at = ("--state-dir", str(tmp_path))
    run("tenants", "set", "red", "--weight", "2", "--limit", "tokens_per_minute=1000", *at)
    [tenant] = json.loads(run("tenants", "list", *at, "--json").stdout)
    assert (tenant["name"], tenant["weight"], tenant["limits"]) == ("red", 2, {"tokens_per_minute": 1000})
    run("tenants", "set", "red", "--model-limit", "org/m:7b:concurrency=3", "--model-limit", "k:shadow=true", *at)
    [tenant] = json.loads(run("tenants", "list", *at, "--json").stdout)
    assert tenant["model_limits"] == {"org/m:7b": {"concurrency": 3}, "k": {"shadow": True}}
    for wrong in ("concurrency=3", ":concurrency=3", "m:concurrency", "m:speed=3"):
        run("tenants", "set", "red", "--model-limit", wrong, *at, code=2)
    run("tenants", "set", "red", "--weight", "0", *at, code=2)
    shown = run("tenants", "set", "red", "--limit", "tokens_per_minute=1000000", *at).stdout
    assert "tokens_per_minute=1000000" in shown
    run("tenants", "remove", "red", *at)
    run("tenants", "remove", "red", *at, code=2)


def test_the_first_key_is_made_once_and_only_where_one_is_asked_for(tmp_path: Path) -> None:
    assert first_key(AccessConfig(state_dir=str(tmp_path))) is None
    config = AccessConfig(mode="required", state_dir=str(tmp_path))
    token = first_key(config)
    assert token is not None
    assert ring_of(tmp_path).authenticate({"x-api-key": token}).scopes == RIGHTS
    assert first_key(config) is None


def test_a_gateway_starts_on_a_damaged_store_and_goes_on_from_its_copy(tmp_path: Path) -> None:
    config = AccessConfig(mode="required", state_dir=str(tmp_path))
    token = first_key(config)
    assert token is not None
    (tmp_path / FILE_NAME).write_bytes(b"no database at all" * 100)
    assert first_key(config) is None, "the one that it holds is the first"
    assert ring_of(tmp_path).authenticate({"x-api-key": token}).scopes == RIGHTS


@pytest.mark.parametrize(
    "command",
    [
        ("keys", "create", "--tenant", "red", "--expires-days", "1e9"),
        ("keys", "rotate", "0123456789", "--grace-hours", "1e300"),
        ("tenants", "set", "red", "--weight", "inf"),
    ],
)
def test_a_number_without_measure_is_wrong_input(tmp_path: Path, command: tuple[str, ...]) -> None:
    run(*command, "--state-dir", str(tmp_path), code=2)


def test_only_the_limit_that_is_a_switch_can_be_true() -> None:
    assert limits_of(["shadow=true", "concurrency=3"]) == {"shadow": True, "concurrency": 3}
    with pytest.raises(ConfigError, match="requests_per_minute=true"):
        limits_of(["requests_per_minute=true"])  # it would be a limit of 1
