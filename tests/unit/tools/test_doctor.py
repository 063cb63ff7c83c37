"""What doctor finds in a configuration before an engine is started: in settings, in secrets, in the store."""

import asyncio
import re
from collections.abc import Iterator, Mapping
from pathlib import Path
from typing import Any

import pytest
import yaml
from packaging.specifiers import SpecifierSet
from packaging.version import Version
from support.limits_store import StoreServer, needs_server

from policies import Advisory, load_advisories
from policies.advisory import unknowns, unmet
from policies.facts import PoolFacts
from serve.config.compiled_policy import SHIPPED_ADVISORIES
from serve.config.gateway import GatewayConfig
from serve.tools.decider import Decider
from serve.tools.doctor import examine, secret_findings, try_store

STALE = {"pipeline-parallel-size": 2, "async-scheduling": False}


def errors(tmp_path: Path, engine_args: dict[str, Any], *, drafter: bool = True, version: str = "0.33.0") -> list[str]:
    """Returns doctor's errors about a model with one vLLM pool."""
    speculative = {"speculative-config": {"method": "eagle3", "model": "d", "num_speculative_tokens": 2}}
    pool = {"kind": "vllm", "facts": {"engine_version": version}}
    engine_args = {"model": "m", **engine_args, **(speculative if drafter else {})}
    config = tmp_path / "config.yaml"
    config.write_text(
        yaml.safe_dump(
            {
                "models": {
                    "m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": {**pool, "engine_args": engine_args}}}
                }
            }
        )
    )
    return [each["message"] for each in examine(Decider.load(config))["findings"] if each["level"] == "error"]


def test_drafts_in_pipeline_stages_with_synchronous_scheduling_are_an_error(tmp_path: Path) -> None:
    assert any("vllm#52071" in text and "remove no-async-scheduling" in text for text in errors(tmp_path, STALE))


@pytest.mark.parametrize(
    ("engine_args", "drafter"),
    [
        (STALE, False),
        ({**STALE, "async-scheduling": True}, True),
        ({**STALE, "pipeline-parallel-size": 1}, True),
        ({**STALE, "enable-dbo": True}, True),  # which the V2 runner does not have
    ],
)
def test_the_same_without_one_of_the_three_is_not(tmp_path: Path, engine_args: dict[str, Any], drafter: bool) -> None:
    assert not any("vllm#52071" in text for text in errors(tmp_path, engine_args, drafter=drafter))


def findings_of(models: dict[str, Any], tmp_path: Path) -> list[dict[str, Any]]:
    config = tmp_path / "config.yaml"
    config.write_text(yaml.safe_dump({"models": models}))
    return list(examine(Decider.load(config))["findings"])


def remote(**facts: Any) -> dict[str, Any]:
    pool = {"kind": "remote", "url": "http://engine:8000", "facts": facts}
    return {"m": {"family": "kimi-k2", "grammar": "kimi_k2", "pools": {"p": pool}}}


def test_the_first_cures_of_a_file_without_facts_are_to_ask_the_engine_and_to_state_them(tmp_path: Path) -> None:
    first, *rest = findings_of(remote(), tmp_path)
    assert "only because the engine is unknown" in first["message"]
    assert first["message"].count(",") < 6, "names of advisories that concern somebody else"
    asked, stated = first["cures"]
    assert asked == "`specgate front --config FILE --write NEW_FILE` asks the engines that run, and states it"
    assert stated.startswith("State in `facts` of p what runs there: `engine: vllm`, `engine_version`, `method`")
    assert not any("smg" in cure for finding in rest for cure in finding["cures"])
    holes = [each["message"] for each in rest if "cve-" in each["message"]]
    assert len(holes) == 1, "what an unknown engine may have is one finding"
    assert "its engine is unknown, and may have" in holes[0]


def test_a_model_folder_that_is_not_here_is_told_once_and_is_no_error(tmp_path: Path) -> None:
    engine = {"engine_args": {"model": "/no/such/folder", "tool-call-parser": "hermes"}}
    models = {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"a": engine, "b": engine}}}
    (away,) = [each for each in findings_of(models, tmp_path) if "is not on this machine" in each["message"]]
    assert (away["level"], "/no/such/folder" in away["message"]) == ("info", True)


@pytest.mark.parametrize("facts", [{}, {"method": None}])
def test_a_remote_pool_that_does_not_say_whether_it_drafts_is_told(tmp_path: Path, facts: dict[str, Any]) -> None:
    assert any("`facts` does not say `method`" in each["message"] for each in findings_of(remote(**facts), tmp_path))


@pytest.mark.parametrize("version", ["nightly", "\u201c0.19.1\u201d", "0.1.dev7557+g977180c"])
def test_a_version_that_tells_no_release_is_said_to_count_as_unknown(tmp_path: Path, version: str) -> None:
    found = findings_of(remote(engine="vllm", engine_version=version, method="none"), tmp_path)
    assert any(version in each["message"] and "counts as unknown" in each["message"] for each in found)
    assert not any("of  what" in cure for each in found for cure in each["cures"]), "the pool is named"


def test_an_engine_that_is_known_to_be_affected_keeps_its_own_cure(tmp_path: Path) -> None:
    found = findings_of(remote(engine="smg", engine_version="1.0.0", method="none"), tmp_path)
    (crash,) = [each for each in found if each["advisory"] == "kimi-reserved-ids-crash"]
    assert crash["cures"][0].startswith("Update smg")


def test_a_mistyped_engine_argument_is_an_error_with_the_right_name(tmp_path: Path) -> None:
    assert "vLLM has no engine argument 'max-model-length'; did you mean 'max-model-len'?" in errors(
        tmp_path, {"max-model-length": 1024}
    )


@pytest.mark.parametrize(
    ("content", "level", "said"),
    [
        (None, "warning", "can't be read: No such file"),
        ("tenants: [", "error", "is not YAML"),
        ("tenant: {}", "error", "tenant: unknown key; did you mean `tenants`?"),
        ("", "", ""),
    ],
)
def test_a_file_of_keys_that_no_gateway_would_start_with_is_found(
    content: str | None, level: str, said: str, tmp_path: Path
) -> None:
    keys = tmp_path / "keys.yaml"
    if content is not None:
        keys.write_text(content)
    config = tmp_path / "config.yaml"
    access = {"mode": "required", "file": str(keys)}
    config.write_text(yaml.safe_dump({"models": remote(engine="vllm", method="none"), "access": access}))
    found = [each for each in examine(Decider.load(config))["findings"] if str(keys) in each["message"]]
    assert [each["level"] for each in found] == [level] * bool(level)
    assert all(said in each["message"] for each in found)


ADVISORIES = [each for each in load_advisories(SHIPPED_ADVISORIES) if each.status != "withdrawn"]


def guesses(name: str, condition: Any) -> Iterator[Any]:
    """Yields values of which one meets a condition, if any does."""
    if isinstance(condition, dict):
        yield from ("another", "9.9.9", 7)
    elif isinstance(condition, list):
        for each in condition:
            yield from guesses(name, each)
    elif not isinstance(condition, str):
        yield condition
    elif name.endswith("_version"):
        for version in (Version(part.version) for part in SpecifierSet(condition)):
            yield str(version)
            yield from (f"{version.major}.{minor}.9" for minor in range(max(0, version.minor - 1), version.minor + 1))
    elif condition[0] in "<>=!":
        bound = int(re.findall(r"\d+", condition)[0])
        yield from (bound - 0.5, bound - 1, bound, bound + 1)
    else:
        yield re.sub(r"\[!.\]", "x", condition.replace("*", "")) or "mtp"
        yield condition.replace("*", "x")


def facts_for(conditions: Mapping[str, Any]) -> dict[str, Any]:
    """Returns facts that meet conditions, and that no condition leaves open."""
    facts: dict[str, Any] = {}
    for name, condition in conditions.items():
        if name == "settings":
            facts["settings"] = {key: met(f"settings.{key}", value) for key, value in condition.items()}
        elif name == "drafter_owner":
            facts["drafter"] = f"somebody/{facts.get('drafter', 'a-drafter')}"
        else:
            facts[name] = met(name, condition)
    return facts


def met(name: str, condition: Any) -> Any:
    for guess in guesses(name, condition):
        inner = name.removeprefix("settings.")
        alone = {"settings": {inner: condition}} if inner != name else {name: condition}
        facts = PoolFacts("m", "p", **({"settings": {inner: guess}} if inner != name else {name: guess}))
        if not unmet(alone, facts) and not unknowns(alone, facts):
            return guess
    raise AssertionError(f"no guess meets {name}: {condition}")


def pool_of(advisory: Advisory) -> dict[str, Any]:
    """Returns a model with one pool that an advisory is known to affect."""
    facts = {"method": "mtp", "engine": "vllm", **facts_for(advisory.affects[0])}
    names = {"family": "family", "model_version": "version", "quantization": "quantization"}
    about = {name: facts.pop(fact) for fact, name in names.items() if fact in facts}
    pool = {"kind": "remote", "url": "http://engine:8000", "facts": facts}
    return {"family": "other", "grammar": "none", **about, "pools": {"p": pool}}


def test_every_advisory_is_found_where_a_pool_is_affected(tmp_path: Path) -> None:
    findings = findings_of({each.id: pool_of(each) for each in ADVISORIES}, tmp_path)
    found = {(each["model"], each["advisory"]) for each in findings}
    assert [each.id for each in ADVISORIES if (each.id, each.id) not in found] == []


def findings(**pool: Any) -> list[str]:
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}
    return [text for *_, text in secret_findings(GatewayConfig.parse({"models": {"m": model}}))]


def test_a_key_that_is_not_here_is_told(tmp_path: Path) -> None:
    (tmp_path / "key").write_text("k")
    remote = {"kind": "remote", "url": "http://there"}
    assert findings(**remote) == []
    assert findings(**remote, api_key_file=str(tmp_path / "key")) == []
    (said,) = findings(**remote, api_key_file=str(tmp_path / "none"))
    assert "models.m.pools.p.api_key_file" in said


@pytest.mark.parametrize(
    "pool",
    [
        {"env": {"HF_TOKEN": "canary"}},
        {"env": {"OTEL_EXPORTER_OTLP_HEADERS": "canary"}},
        {"engine_args": {"hf_token": "canary"}},
        {"ray_actor_options": {"runtime_env": {"env_vars": {"AWS_SECRET_ACCESS_KEY": "canary"}}}},
    ],
)
def test_a_secret_in_the_configuration_is_told_by_name(pool: dict[str, Any]) -> None:
    (said,) = findings(**pool)
    assert "Ray's dashboard shows" in said
    assert "canary" not in said


def test_what_only_looks_like_a_secret_is_none() -> None:
    assert findings(env={"TOKENIZERS_PARALLELISM": "false"}, engine_args={"hf-token": True}) == []


def config(url: str | None, enabled: bool = True) -> GatewayConfig:
    limits: dict[str, Any] = {"enabled": enabled, **({"store": {"url": url}} if url else {})}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": {"kind": "sim"}}}
    return GatewayConfig.parse({"models": {"m": model}, "rate_limits": limits})


def test_nothing_is_said_where_no_store_is_configured() -> None:
    assert try_store(config(None)) is None


def test_a_store_without_limits_has_no_effect() -> None:
    assert try_store(config("redis://127.0.0.1:1", enabled=False)) == (
        "warning", "rate_limits.store has no effect: limits are off, see rate_limits.enabled"
    )  # fmt: skip


def test_a_store_that_is_not_there_is_a_warning_with_its_address() -> None:
    found = try_store(config("redis://127.0.0.1:1"))
    assert found is not None
    assert found[0] == "warning"
    assert "127.0.0.1:1 can't be used" in found[1]


@needs_server
@pytest.mark.parametrize(
    ("options", "level", "said"),
    [
        ((), "info", "answers from here"),
        (("--maxmemory", "100mb", "--maxmemory-policy", "allkeys-lru"), "warning", "noeviction"),
    ],
)
async def test_a_store_that_answers_is_named(tmp_path: Path, options: tuple[str, ...], level: str, said: str) -> None:
    server = StoreServer(tmp_path, *options)
    await server.start()
    try:
        found = await asyncio.to_thread(try_store, config(server.config.url))
    finally:
        server.stop()
    assert found is not None
    assert found[0] == level
    assert said in found[1]


@pytest.mark.parametrize(
    ("access", "idle"),
    [
        ({"mode": "off", "cache_salt": "tenant"}, "access.cache_salt"),
        ({"cache_salt": "tenant", "file": "/keys.yaml"}, "access.file and access.cache_salt"),
        ({"oidc": {"issuer": "https://id", "audience": "us"}}, "access.oidc"),
        ({"cache_salt": "off", "state_dir": "/state"}, None),
        ({}, None),
        ({"mode": "required", "file": "/keys.yaml", "cache_salt": "tenant"}, None),
    ],
)
def test_what_has_no_effect_without_keys_is_told(access: dict[str, Any], idle: str | None) -> None:
    pool = {"kind": "remote", "url": "http://there", "facts": {"method": "none"}}
    model = {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}
    report = examine(Decider(GatewayConfig.parse({"models": {"m": model}, "access": access})))
    told = [each["message"] for each in report["findings"] if "without effect" in each["message"]]
    assert [idle] == [text.split(": ")[1].split(". ")[0] for text in told] if idle else not told
    assert all("set access.mode to `required`" in text for text in told)
