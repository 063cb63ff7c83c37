"""`specgate usage`, offline."""

import json
from datetime import UTC, datetime
from pathlib import Path

import pytest
from typer.testing import CliRunner

from serve.cli.main import app
from serve.limits.book import UsageBook
from serve.limits.usage import UsageKey, UsageSums


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
