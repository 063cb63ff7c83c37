"""What advisories say about vLLM holds on the pinned vLLM."""

import json
import warnings

import pytest
from typer.testing import CliRunner

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from serve.engine.vllm import claims

from policies import load_advisories
from serve.cli import app
from serve.live_policy import SHIPPED_ADVISORIES


def test_every_claim_holds_on_the_pinned_engine() -> None:
    tallies = claims.check_claims()
    assert {name for name, tally in tallies.items() if tally.holds < tally.cases} == set()
    assert tallies["sampling-refused-by-speculation"] == (22, 22)


def test_every_claim_belongs_to_an_advisory() -> None:
    assert set(claims.check_claims()) <= {advisory.id for advisory in load_advisories(SHIPPED_ADVISORIES)}


def test_verify_says_how_each_is_known_and_fails_when_the_engine_differs(monkeypatch: pytest.MonkeyPatch) -> None:
    result = CliRunner().invoke(app, ["advisories", "verify", "--json"])
    rows = {row["id"]: row for row in json.loads(result.output)}
    assert result.exit_code == 0
    assert len(rows) == len(load_advisories(SHIPPED_ADVISORIES))
    assert rows["guided-fields-ignored"]["here"] == "holds (8 of 8)"
    other = rows["sglang-grammar-with-eagle"]
    assert (other["known_by"], other["checked"], other["here"]) == ("reported", "2026-11-22", None)
    monkeypatch.setattr(claims, "check_claims", lambda: {"guided-fields-ignored": claims.Tally(7, 8)})
    differs = CliRunner().invoke(app, ["advisories", "verify"])
    assert differs.exit_code == 1
    assert "7 of 8" in differs.output
