"""Commands that ask the admin API of a running gateway, and what they say without one."""

import json
import os
import threading
from datetime import UTC, datetime
from http.server import BaseHTTPRequestHandler, HTTPServer
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve.admin.audit import AuditEntry, AuditLog
from serve.cli import app
from serve.limits.book import UsageBook
from serve.limits.usage import UsageKey, UsageSums

NOBODY = "http://127.0.0.1:9"


@pytest.mark.parametrize(
    "key", ["sgk_benchBENCH_secret\nx", "schl\u00fcssel", "sgk_\u2192", "sgk_benchBENCH_secret\x7f"]
)
def test_a_key_that_can_be_none_is_told_without_being_repeated(monkeypatch: pytest.MonkeyPatch, key: str) -> None:
    """HTTP's own error repeated it; or there was none that anybody expected."""
    monkeypatch.setenv("SPECGATE_KEY", key)
    result = CliRunner().invoke(app, ["keys", "list", "--url", NOBODY])
    assert result.exit_code == 2
    assert "SPECGATE_KEY holds characters" in result.output
    assert key.split("_")[-1] not in result.output


def test_the_end_of_a_line_behind_the_key_does_not_matter(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("SPECGATE_KEY", "sgk_benchBENCH_secret\r\n")
    result = CliRunner().invoke(app, ["keys", "list", "--url", NOBODY])
    assert "no admin API answers" in result.output.replace("\n", " ")


@pytest.mark.parametrize("others", [{}, {"NO_PROXY": "example.com"}, {"no_proxy": "*"}])
def test_no_proxy_is_asked_for_what_is_on_this_machine(monkeypatch: pytest.MonkeyPatch, others: dict[str, str]) -> None:
    seen: list[str] = []

    class Proxy(BaseHTTPRequestHandler):
        def do_GET(self) -> None:
            seen.append(self.path)
            self.send_error(502)

    with HTTPServer(("127.0.0.1", 0), Proxy) as proxy:
        threading.Thread(target=proxy.serve_forever, daemon=True).start()
        for name in ("http_proxy", "HTTP_PROXY"):
            monkeypatch.setenv(name, f"http://127.0.0.1:{proxy.server_port}")
        for name in ("no_proxy", "NO_PROXY"):
            monkeypatch.setenv(name, others.get(name, ""))
        result = CliRunner().invoke(app, ["keys", "list", "--url", NOBODY])
        proxy.shutdown()
    assert "no admin API answers" in result.output.replace("\n", " ")
    assert seen == []
    assert os.environ["no_proxy"].startswith("".join(others.values()))


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


@pytest.fixture
def folder(tmp_path: Path) -> str:
    book = UsageBook(str(tmp_path))
    usage = {UsageKey("acme", "k1", "kimi", "fast", True): UsageSums(2, 10, 4, 20, 7, 1, 0)}
    book.add("r", 1, usage, {}, datetime(2026, 11, 22, 8, tzinfo=UTC))
    return str(tmp_path)


def test_csv_has_a_row_for_each_tenant_and_model(folder: str) -> None:
    result = CliRunner().invoke(app, ["usage", "--by", "tenant,model", "--csv", "--state-dir", folder])
    assert result.output.splitlines() == [
        "tenant,model,requests,input,cached,output,rerun,errors,unsettled",
        "acme,kimi,2,10,4,20,7,1,0",
    ]


def test_json_is_for_scripts(folder: str) -> None:
    result = CliRunner().invoke(app, ["usage", "--by", "speculative", "--json", "--state-dir", folder])
    assert json.loads(result.output)[0]["speculative"] is True


def test_hours_can_be_chosen(folder: str) -> None:
    result = CliRunner().invoke(app, ["usage", "--since", "2026-11-22T09:00", "--csv", "--state-dir", folder])
    assert len(result.output.splitlines()) == 1


@pytest.mark.parametrize("wrong", [["--by", "price"], ["--since", "yesterday"]])
def test_wrong_questions_are_refused(folder: str, wrong: list[str]) -> None:
    assert CliRunner().invoke(app, ["usage", *wrong, "--state-dir", folder]).exit_code == 2


@pytest.mark.parametrize("content", [b"", b"no database " * 100])
def test_a_file_that_holds_no_usage_is_told(tmp_path: Path, content: bytes) -> None:
    (tmp_path / "usage.sqlite").write_bytes(content)
    result = CliRunner().invoke(app, ["usage", "--state-dir", str(tmp_path)])
    assert result.exit_code == 2
    assert "can't be read" in result.output.replace("\n", " ")
