"""What the commands say that talk to the admin API, when there is none or the key is wrong."""

import pytest
from typer.testing import CliRunner

from serve.cli import app

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
