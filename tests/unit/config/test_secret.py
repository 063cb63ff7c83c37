"""Keys and passwords are read where they are used, and never repeated."""

import logging
import traceback
from pathlib import Path

import pytest
from support.clock import ManualClock
from support.odd_files import ODD_KINDS, put_odd

from serve.config.secret import PERIOD_S, LiveSecret, Secret
from serve.errors import ConfigError

CANARY = "canary-of-a-secret"


def in_file(path: Path) -> Secret:
    return Secret("models.m.pools.p.api_key", None, str(path))


def refusal(secret: Secret) -> str:
    with pytest.raises(ConfigError) as refused:
        secret.read()
    assert CANARY not in "".join(traceback.format_exception(refused.value))
    return str(refused.value)


def test_a_secret_is_read_from_a_variable_or_a_file_without_white_space(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setenv("A_KEY", f" {CANARY} ")
    (tmp_path / "key").write_text(f"{CANARY}\n")
    assert Secret("x.api_key", "A_KEY", None).read() == CANARY
    assert in_file(tmp_path / "key").read() == CANARY


@pytest.mark.parametrize(("env", "file"), [("A", "b"), (None, None), ("", "")])
def test_a_secret_has_one_source(env: str | None, file: str | None) -> None:
    with pytest.raises(ValueError, match="set api_key_env or api_key_file, not both"):
        Secret("x.api_key", env, file)


def test_a_missing_secret_says_what_to_do(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.delenv("NO_SUCH_KEY", raising=False)
    said = refusal(Secret("x.api_key", "NO_SUCH_KEY", None))
    assert said.startswith("x.api_key_env: NO_SUCH_KEY is not set on this node")
    assert "before Ray starts" in said
    assert "api_key_file" in said
    said = refusal(in_file(tmp_path / "key"))
    assert said.startswith(f"models.m.pools.p.api_key_file: {tmp_path / 'key'} can't be read on this node")


@pytest.mark.parametrize(
    ("held", "said"),
    [
        (b"", "is empty"),
        (b" \n", "is empty"),
        (f"{CANARY}\r\nx-admin: yes".encode(), "more than one line"),
        (f"{CANARY}\0".encode(), "can't be printed"),
        (CANARY.encode() + b"\xff", "is no text"),
    ],
)
def test_what_is_no_secret_is_refused_and_not_repeated(tmp_path: Path, held: bytes, said: str) -> None:
    (tmp_path / "key").write_bytes(held)
    assert said in refusal(in_file(tmp_path / "key"))


def test_a_replaced_file_is_read_again_and_a_bad_one_changes_nothing(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    path, clock = tmp_path / "key", ManualClock()
    path.write_text("first")
    key = LiveSecret(in_file(path), clock)
    path.write_text("second")
    assert key() == "first"
    clock.now_s += PERIOD_S
    assert key() == "second"
    path.unlink()
    with caplog.at_level(logging.WARNING):
        for _ in range(3):
            clock.now_s += PERIOD_S
            assert key() == "second"
    assert len(caplog.messages) == 1
    path.write_text("third")
    clock.now_s += PERIOD_S
    assert key() == "third"


def test_a_secret_that_is_missing_at_the_start_is_an_error(tmp_path: Path) -> None:
    with pytest.raises(ConfigError):
        LiveSecret(in_file(tmp_path / "key"))


@pytest.mark.parametrize("kind", ODD_KINDS)
def test_what_is_no_file_is_refused_and_holds_nobody(tmp_path: Path, kind: str) -> None:
    path = tmp_path / "key"
    put_odd(kind, path)
    assert "not a regular file" in refusal(in_file(path))
