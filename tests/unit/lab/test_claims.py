"""What advisories say about vLLM, tried on the pinned vLLM."""

import json
import warnings

import pytest
from typer.testing import CliRunner

with warnings.catch_warnings():
    warnings.simplefilter("ignore")  # torch's own deprecations, raised while vLLM is imported
    pytest.importorskip("vllm")
    from lab.claims import kv_cache, reasoning_parsers, table, tool_parsers

from lab.claims.verification import Tried, differs
from lab.cli import verify as commands
from policies import load_advisories
from policies.engine_args import installed_engine
from serve.cli import app
from serve.config.compiled_policy import SHIPPED_ADVISORIES

ADVISORIES = {advisory.id: advisory for advisory in load_advisories(SHIPPED_ADVISORIES)}
VERSION = str(installed_engine()[0])


@pytest.fixture(scope="module")
def tried() -> Tried:
    return Tried(
        VERSION, {name: each if isinstance(each, str) else tuple(each) for name, each in table.try_all().items()}
    )


def test_every_claim_can_be_tried_on_the_pinned_engine_and_none_differs(tried: Tried) -> None:
    assert [each for each in tried.claims.values() if isinstance(each, str)] == []
    assert [name for name, (shown, _) in tried.claims.items() if differs(ADVISORIES[name], VERSION, shown)] == []
    assert tried.claims["sampling-refused-by-speculation"] == (22, 22)


def test_every_claim_belongs_to_an_advisory() -> None:
    assert set(table.CLAIMS) <= set(ADVISORIES)


def test_one_token_at_a_time_no_parser_is_wrong() -> None:
    assert not any(any(tool_parsers.broken_calls(name, most=1)) for name in tool_parsers.FORMATS)
    assert not any(any(reasoning_parsers.broken_thoughts(name, most=1)) for name in ("deepseek_r1", "holo2"))


def test_reasoning_parsers_that_no_advisory_names_stand_several_tokens_at_a_time() -> None:
    assert not any(any(reasoning_parsers.broken_thoughts(name)) for name in ("qwen3", "glm45"))


def test_the_state_that_a_hybrid_hands_out_stands_where_attention_goes_on() -> None:
    for mode in kv_cache.modes():
        reuses = [reuse for reuse in kv_cache.reuses(mode) if reuse.tokens]
        assert len(reuses) > 10
        assert all(reuse.sound for reuse in reuses)


def test_the_harness_would_notice_a_state_from_elsewhere() -> None:
    assert not kv_cache.Reuse(shared=40, tokens=32, state=48).sound
    assert not kv_cache.Reuse(shared=40, tokens=32, state=None).sound
    assert kv_cache.Reuse(shared=40, tokens=0, state=None).sound


def test_verify_says_how_each_is_known_and_fails_when_the_engine_differs(
    monkeypatch: pytest.MonkeyPatch, tried: Tried
) -> None:
    monkeypatch.setattr(commands, "try_claims", lambda _: tried)
    result = CliRunner().invoke(app, ["advisories", "verify", "--json"])
    rows = {row["id"]: row for row in json.loads(result.output)}
    assert result.exit_code == 0
    assert len(rows) == len(ADVISORIES)
    guided, other = rows["guided-fields-ignored"], rows["sglang-grammar-with-eagle"]
    assert (guided["known_by"], guided["affected"], guided["shown"], guided["cases"]) == ("measured", True, 8, 8)
    assert (other["known_by"], other["checked"], other["cases"]) == ("reported", "2026-11-22", None)
    changed = Tried(VERSION, {"guided-fields-ignored": (0, 8), "kimi-counting-tool-parser": "ImportError: moved"})
    monkeypatch.setattr(commands, "try_claims", lambda _: changed)
    reply = CliRunner().invoke(app, ["advisories", "verify"])
    assert reply.exit_code == 1
    assert "DIFFERS" in reply.output
    assert "could not be" in reply.output


def test_two_fifths_of_what_is_confirmed_are_measured() -> None:
    confirmed = [advisory for advisory in ADVISORIES.values() if advisory.status == "confirmed"]
    measured = [a for a in confirmed if any(evidence.kind == "measured" for evidence in a.evidence)]
    assert 5 * len(measured) >= 2 * len(confirmed)
