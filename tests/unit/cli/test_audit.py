"""`specgate audit verify`: what it finds, and what it says that it can't know."""

import json
from pathlib import Path

import pytest

from serve.admin.audit import AuditEntry, AuditLog


@pytest.fixture
def sealed(tmp_path: Path) -> Path:
    log = AuditLog(tmp_path / "audit", key_file=tmp_path / "audit.key")
    for _ in range(3):
        log.write(AuditEntry("k", "team", "10.0.0.1", "keys.create", "x"))
    log.close()
    return tmp_path


def test_a_sealed_log_without_its_key_says_what_is_not_certain(specgate, sealed):
    code, told = specgate("audit", "verify", sealed / "audit")
    assert (code, "--key-file" in told) == (0, True)


def test_with_its_key_a_cut_end_is_found(specgate, sealed):
    command = ("audit", "verify", sealed / "audit", "--key-file", sealed / "audit.key", "--json")
    assert specgate(*command)[0] == 0
    path = sealed / "audit" / "audit-000001.jsonl"
    path.write_text("".join(path.read_text().splitlines(keepends=True)[:-1]))
    code, told = specgate(*command)
    assert (code, len(json.loads(told)["faults"])) == (1, 1)


def test_a_key_that_is_none_is_an_error_and_no_finding(specgate, sealed):
    (sealed / "other").write_text("short")
    code, told = specgate("audit", "verify", sealed / "audit", "--key-file", sealed / "other")
    assert (code, "holds no key" in told.replace("\n", " ")) == (2, True)
