"""Signed verdicts count for the very engine that they are about, for as long as they hold."""

import dataclasses
from datetime import UTC, date, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from support.guard_stack import CHECKED_ADVISORIES
from support.signer import Signer

from policies import PolicySettings, PoolFacts, RequestFeatures, compile_policy, decide
from policies.qualification import FORBIDDEN, Qualification, TestFinding, standing
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.config.signed_verdicts import EngineVerdict, key_of, read_qualifications, write_qualification
from serve.errors import ConfigError

ENGINE = {"engine": "vllm", "engine_version": "0.99.0", "method": "eagle3", "drafter": "org/drafts", "runner": "v2"}
TOOLS = RequestFeatures("kimi", tools=1, tool_choice="auto")


def verdict(finding: TestFinding = "passed") -> EngineVerdict:
    return EngineVerdict(finding=finding, n=100, bad=0, at_least=0.0, at_most=0.01)


def config(signer: Signer, facts: dict[str, Any] | None = None, **policy: Any) -> GatewayConfig:
    pools = {
        "fast": {"kind": "remote", "url": "http://127.0.0.1:1", "facts": {**ENGINE, **(facts or {})}},
        "slow": {"kind": "remote", "url": "http://127.0.0.1:2", "facts": {**ENGINE, "method": "none"}},
    }
    verdicts = {
        "advisories": CHECKED_ADVISORIES,
        "qualifications": str(signer.folder),
        "qualifications_key": str(signer.public),
    }
    return GatewayConfig.parse(
        {
            "models": {"kimi": {"family": "kimi-k2", "version": "2.6", "pools": pools}},
            "policy": {"advisories": CHECKED_ADVISORIES, **verdicts, **policy},
        }
    )


@pytest.fixture
def signer(tmp_path: Path) -> Signer:
    return Signer(tmp_path)


def fast(settings: GatewayConfig) -> PoolFacts:
    return next(facts for facts in compile_for(settings).facts if facts.pool == "fast")


def write(signer: Signer, settings: GatewayConfig, days: int = 9, **findings: TestFinding) -> Path:
    key = key_of(settings, fast(settings))
    assert key is not None
    tests = {name: verdict(findings.get(name, "passed")) for name in FORBIDDEN}
    return write_qualification(signer.folder, key, tests, {"alpha": 0.01}, signer.private, days)


def test_a_verdict_counts_for_the_engine_that_it_is_about(signer: Signer) -> None:
    settings = config(signer)
    assert fast(settings).qualification is None
    write(signer, settings)
    found = fast(settings).qualification
    assert found is not None
    assert found.passed == ("tools", "json", "plain+logprobs", "tools+logprobs", "json+logprobs")
    assert found.on == datetime.now(UTC).date() == found.expires - timedelta(days=9)


@pytest.mark.parametrize(
    "other",
    [
        {"engine_version": "0.99.1"},
        {"drafter": "org/others"},
        {"method": "mtp"},
        {"num_speculative_tokens": 4},
        {"runner": "v1"},
        {"tool_parser": "hermes"},
        {"settings": {"image": "sha256:beef"}},
    ],
)
def test_an_engine_that_differs_in_any_part_is_another_one(signer: Signer, other: dict[str, Any]) -> None:
    write(signer, config(signer))
    assert fast(config(signer, other)).qualification is None
    write(signer, config(signer, other))
    assert fast(config(signer, other)).qualification is not None


def test_engines_of_ours_are_told_apart_by_every_argument(signer: Signer) -> None:
    def key(args: dict[str, Any], **learned: Any) -> Any:
        pool = {"engine_args": {"model": "org/kimi", "speculative-config": {"method": "ngram"}, **args}}
        settings = GatewayConfig.parse({"models": {"kimi": {"family": "kimi-k2", "pools": {"fast": pool}}}})
        (facts,) = settings.pool_facts()
        return key_of(settings, dataclasses.replace(facts, engine="vllm", engine_version="0.99", **learned))

    assert key({}) != key({"max-model-len": 99})
    assert key({"max_model_len": 99}) == key({"max-model-len": 99})
    assert key({}) == key({}, prefix_caching=True, runner="v2")  # which follows from version and arguments


def test_what_drafts_nothing_or_tells_no_version_has_no_key(signer: Signer) -> None:
    settings = config(signer)
    facts = fast(settings)
    assert key_of(settings, dataclasses.replace(facts, method=None)) is None
    assert key_of(settings, dataclasses.replace(facts, engine_version=None)) is None


def test_the_newest_verdict_counts(signer: Signer, monkeypatch: pytest.MonkeyPatch) -> None:
    settings = config(signer)
    monkeypatch.setattr("time.time", lambda: 1e9)
    first = write(signer, settings)
    first.rename(first.with_name(f"zzz-{first.name}"))
    monkeypatch.undo()
    write(signer, settings, tools="failed")
    found = fast(settings).qualification
    assert found is not None
    assert "tools" in found.failed


def test_what_nobody_signed_counts_for_nothing_and_is_refused_later(signer: Signer) -> None:
    settings = config(signer)
    path = write(signer, settings)
    path.write_text(path.read_text()[:-9] + "AAAAAAAA\n")
    assert read_qualifications(settings.policy) == ()
    with pytest.raises(ConfigError, match="is not signed by"):
        read_qualifications(settings.policy, strict=True)
    path.unlink()
    (signer.folder / "pipe.jws").mkdir()
    with pytest.raises(ConfigError, match="can't be read"):
        read_qualifications(settings.policy, strict=True)


def test_a_document_of_another_kind_is_no_verdict(signer: Signer) -> None:
    settings = config(signer)
    unknown = {"x": verdict().model_dump()}
    for claims in ({"key": {}, "tests": {}}, {"key": {}, "tests": unknown}, {"key": 1, "tests": {}}):
        signer.write_index({"iat": 1, "exp": 2, **claims})
        with pytest.raises(ConfigError, match="no verdict on an engine"):
            read_qualifications(settings.policy, strict=True)
    signer.write_index({"iat": 1, "exp": 2, "files": {"a": "b"}})
    with pytest.raises(ConfigError, match="missing"):
        read_qualifications(settings.policy, strict=True)


def test_a_folder_without_its_key_or_that_is_none_is_refused(signer: Signer) -> None:
    with pytest.raises(ConfigError, match="belong together"):
        config(signer, qualifications_key=None)
    settings = config(signer, qualifications=str(signer.folder / "none"))
    assert read_qualifications(settings.policy) == ()
    with pytest.raises(ConfigError, match="there is no folder"):
        read_qualifications(settings.policy, strict=True)


def decided(settings: GatewayConfig, features: RequestFeatures = TOOLS) -> Any:
    return decide(compile_for(settings), features, None)


def test_a_new_build_is_suspected_until_it_is_qualified(signer: Signer) -> None:
    settings = config(signer)
    assert not decided(settings).speculative
    write(signer, settings)
    found = decided(settings)
    assert found.speculative
    assert any(each.effect == "proven" and "qualified on" in each.summary for each in found.reasons)


@pytest.mark.parametrize("unqualified", ["suspect", "quarantine"])
def test_where_engines_have_to_be_qualified_only_those_draft_what_drafts_could_break(
    signer: Signer, unqualified: str
) -> None:
    known = {"engine_version": "0.32.0", "engine": "sim", "method": "sim"}
    settings = config(signer, known, unqualified=unqualified)
    assert decided(config(signer, known)).speculative
    assert decided(settings, RequestFeatures("kimi")).speculative
    assert not decided(settings).speculative
    assert not decided(settings, RequestFeatures("kimi", logprobs=True)).speculative
    write(signer, settings)
    assert decided(settings).speculative
    assert decided(settings, RequestFeatures("kimi", logprobs=True)).speculative


@pytest.mark.parametrize(
    ("test", "features", "speculative"),
    [
        ("tools", TOOLS, False),
        ("tools", RequestFeatures("kimi", response_format="json_object"), True),
        ("echo", TOOLS, False),
        ("stop", TOOLS._replace(stop=True), False),
        ("stop", RequestFeatures("kimi"), True),
        ("two", RequestFeatures("kimi"), False),
    ],
)
def test_what_was_drafted_wrongly_is_not_drafted(
    signer: Signer, test: str, features: RequestFeatures, speculative: bool
) -> None:
    settings = config(signer, {"engine": "sim", "method": "sim"})
    assert decided(settings, features).speculative
    write(signer, settings, **{test: "failed"})
    found = decided(settings, features)
    assert found.speculative == speculative
    assert speculative or "qualification-failed" in {reason.advisory for reason in found.reasons}


def test_a_class_is_vouched_for_only_if_all_that_could_break_it_was_passed() -> None:
    day = date(2026, 11, 1)

    def passed(**tests: TestFinding) -> tuple[str, ...]:
        return Qualification({**dict.fromkeys(FORBIDDEN, "passed"), **tests}, 9, day, day).passed

    assert passed(long="undecided") == passed(stop="undecided") == passed(echo="failed") == ()
    assert passed(logprobs="undecided") == ("tools", "json")
    assert passed(json="failed") == ("tools", "plain+logprobs", "tools+logprobs")


def test_a_verdict_that_has_expired_neither_vouches_nor_forbids() -> None:
    day = date(2026, 11, 1)
    qualification = Qualification({"two": "failed"}, 9, day, day + timedelta(days=3))
    facts = PoolFacts("kimi", "fast", "sim", method="sim", engine="sim", qualification=qualification)
    policy = compile_policy([facts], [], PolicySettings(), today=day)
    moment = datetime(2026, 11, 4, tzinfo=UTC).timestamp()
    assert decide(policy, RequestFeatures("kimi"), None, now_s=moment - 1).refused
    assert decide(policy, RequestFeatures("kimi"), None, now_s=moment).speculative
    assert standing(None, day) == "not qualified"
    assert standing(qualification, day) == "qualified on 2026-11-01, expires 2026-11-04: failed: two"
    assert standing(qualification, date(2026, 11, 4)).startswith("not qualified any more")
