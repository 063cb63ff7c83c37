"""One strict model of the configuration: what is wrong is said with its place."""

import re
from datetime import date
from pathlib import Path
from typing import Any

import pytest
import yaml

from policies import Override
from serve.config.gateway import AdminConfig, GatewayConfig
from serve.config.model_names import ModelNames
from serve.errors import ConfigError

ROOT = Path(__file__).parents[3]


def config(**pool: Any) -> dict[str, Any]:
    return {"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": {"p": pool}}}}


@pytest.mark.parametrize(
    ("args", "place"),
    [
        ({"models": {}}, "models"),
        (config(engine_args={"model": "x"}, replica=2), "models.m.pools.p.replica"),
        (config(kind="remote"), "models.m.pools.p"),
        (config(kind="vllm", served_name="/m"), "served_name"),
        (config(kind="vllm", reasoning_field="reasoning"), "reasoning_field"),
        (config(kind="remote", url="http://x", engine_args={"model": "x"}), "models.m.pools.p"),
        (config(kind="sim", url="http://x"), "models.m.pools.p"),
        (config(sim={"seed": 1}), "models.m.pools.p"),
        (config(autoscaling={"min_replicas": 3, "max_replicas": 2}), "models.m.pools.p.autoscaling"),
        ({**config(), "limits": {"max_body_bytes": 0}}, "limits.max_body_bytes"),
        ({**config(), "polices": {}}, "polices"),
    ],
)
def test_what_is_wrong_is_named_by_its_place(args: dict[str, Any], place: str) -> None:
    with pytest.raises(ConfigError, match=place.replace(".", r"\.")):
        GatewayConfig.parse(args)


@pytest.mark.parametrize(
    ("args", "said"),
    [
        ({**config(), "modles": {}}, "modles: unknown key; did you mean `models`?"),
        (
            config(max_ongoing_request=1),
            "models.m.pools.p.max_ongoing_request: unknown key; did you mean `max_ongoing_",
        ),
        (
            {**config(), "policy": {"overrides": [{"acton": "pin"}]}},
            "policy.overrides.0.acton: unknown key; did you mean",
        ),
        ({**config(), "policy": {"canary": 1}}, "policy.canary: unknown key; known keys: mode, "),
        (
            {**config(), "rate_limits": {"store": {"uri": "x"}}},
            "rate_limits.store.uri: unknown key; did you mean `url`?",
        ),
    ],
)
def test_an_unknown_key_comes_with_the_one_that_was_meant_or_all_that_are_known(args: Any, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        GatewayConfig.parse(args)


@pytest.mark.parametrize(
    ("text", "said"),
    [
        ("aliases: [no]", "m.aliases.0: Input should be a valid string; put it in quotes, or it is read as true"),
        ("family: 1.5", "in quotes, or it is read as a number"),
        ("family: 2024-01-01", "in quotes, or it is read as a date"),
        ("guard: {mode: off}", "'strict'; put it in quotes, or it is read as true or false"),
    ],
)
def test_a_text_that_yaml_takes_for_something_else_is_to_be_quoted(text: str, said: str) -> None:
    with pytest.raises(ConfigError, match=re.escape(said)):
        GatewayConfig.parse({"models": {"m": {**config()["models"]["m"], **yaml.safe_load(text)}}})


@pytest.mark.parametrize("text", ["family: []", "guard: {mode: of}"])
def test_quotes_are_not_asked_for_where_they_would_not_help(text: str) -> None:
    with pytest.raises(ConfigError) as caught:
        GatewayConfig.parse({"models": {"m": {**config()["models"]["m"], **yaml.safe_load(text)}}})
    assert "quotes" not in str(caught.value)


@pytest.mark.parametrize(
    ("url", "said"),
    [
        ("engine:8000", "must have the form"),
        ("", "must have the form"),
        ("ftp://engine", "must have the form"),
        ("http://", "must have the form"),
        ("http://engine:99999", "must have the form"),
        ("http://engine:80x", "must have the form"),
        ("http://engine/v1", "without `/v1`"),
        ("http://engine/openai/v1/chat/completions", "without `/v1`"),
        ("http://engine?key=x", "a query"),
        ("http://user:secret@engine", "api_key_env"),
        ("http://${HOST}:8000", "write the address itself"),
        ("http://$HOST/", "write the address itself"),
        ("http://<HOST>:8000", "write the address itself"),
        ("http://a b:8000", "must have the form"),
        ("http://a,b:8000", "must have the form"),
    ],
)
def test_the_url_of_a_remote_pool_is_the_base_of_its_routes(url: str, said: str) -> None:
    with pytest.raises(ConfigError, match=said):
        GatewayConfig.parse(config(kind="remote", url=url))


@pytest.mark.parametrize("url", ["http://engine:8000", "https://engine/", "http://[::1]:8000", "http://e/openai/v10"])
def test_any_base_will_do(url: str) -> None:
    assert GatewayConfig.parse(config(kind="remote", url=url)).models["m"].pools["p"].url == url


def test_a_model_name_may_be_used_once() -> None:
    args = config()
    args["models"]["n"] = {**args["models"]["m"], "aliases": ["m"]}
    with pytest.raises(ConfigError, match="'m' is used twice"):
        GatewayConfig.parse(args)


def test_an_alias_resolves_to_the_models_own_name() -> None:
    args = config()
    args["models"]["m"]["aliases"] = ["org/M"]
    names = ModelNames(GatewayConfig.parse(args).each_name())
    assert (names.own_name("org/M"), names.own_name("m"), names.own_name("x")) == ("m", "m", None)


def test_a_pools_engine_args_lie_over_the_models_whichever_way_they_are_spelt() -> None:
    args = config(engine_args={"max_model_len": 2, "speculative-config": {"method": "ngram"}})
    args["models"]["m"]["engine_args"] = {"max-model-len": 1, "seed": 0}
    assert GatewayConfig.parse(args).models["m"].engine_args_of("p") == {
        "max-model-len": 2,
        "seed": 0,
        "speculative-config": {"method": "ngram"},
    }


def test_facts_are_derived_from_the_engine_args() -> None:
    spec = {"method": "ngram", "num_speculative_tokens": 3, "prompt_lookup_min": 2, "prompt_lookup_max": 4}
    args = config(engine_args={"model": "x", "speculative-config": spec}, opt_out=True)
    (facts,) = GatewayConfig.parse(args).pool_facts()
    assert (facts.model, facts.pool, facts.method, facts.num_speculative_tokens) == ("m", "p", "ngram", 3)
    assert facts.opt_out
    assert facts.settings["prompt_lookup_min"] == 2


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("a: [", "is not YAML"),
        ("- 1", "holds no mapping"),
        ("applications: []", "exactly one application"),
        ("model_list: []", "specgate front --from .*gateway.yaml"),
        ("{apiVersion: v1, kind: Service}", "specgate front --from .*gateway.yaml"),
        ("models: {}", "models: at least one entry is needed"),
        ("applications: [{args: {models: {}}}]", "models"),
        ("models:\n", "models: it is empty; indent what belongs to it"),
        ("models:\n  m:\n    pools:\n      p:\n", "models.m.pools.p: it is empty; indent what"),
        ("models: [m]", "models: it should hold keys with values"),
    ],
)
def test_a_wrong_file_is_told_by_its_name(tmp_path: Path, text: str, message: str) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(text)
    with pytest.raises(ConfigError, match=message) as caught:
        GatewayConfig.load(path)
    assert str(path) in str(caught.value)


def test_a_missing_file_is_told_by_its_name(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match=r"nowhere\.yaml can't be read"):
        GatewayConfig.load(tmp_path / "nowhere.yaml")


@pytest.mark.parametrize("path", sorted((ROOT / "deploy").glob("*.yaml")), ids=lambda path: path.name)
def test_every_shipped_config_is_valid(path: Path) -> None:
    assert GatewayConfig.load(path).models


@pytest.mark.parametrize("expires", [date(2027, 1, 1), "2027-01-01"])
def test_overrides_become_the_policys_own(expires: date | str) -> None:
    waiver = {"action": "waive", "reason": "probed", "advisory": "a", "classes": ["tools"], "expires": expires}
    policy = {"mode": "advise", "optimistic": True, "overrides": [waiver]}
    settings = GatewayConfig.parse({**config(), "policy": policy}).policy_settings()
    assert settings.overrides == (Override("waive", "probed", None, None, "a", ("tools",), date(2027, 1, 1)),)
    assert (settings.mode, settings.optimistic, settings.guard) == ("advise", True, True)


@pytest.mark.parametrize(
    ("policy", "message"),
    [
        ({"mode": "yolo"}, "policy.mode: Input should be 'enforce' or 'advise'"),
        ({"speed": 9}, "policy.speed: unknown key"),
        ({"overrides": [{"action": "pin"}]}, "policy.overrides.0.reason: Field required"),
        ({"overrides": [{"action": "smile", "reason": "r"}]}, "policy.overrides.0.action: Input should be 'pin'"),
        (
            {"overrides": [{"action": "pin", "reason": "r", "colour": 1}]},
            "policy.overrides.0.colour: unknown key; known keys: action, reason, ",
        ),
        ({"overrides": [{"action": "pin", "reason": "r"}]}, "policy.overrides.0: .* names a pool"),
        ({"overrides": [{"action": "forbid", "reason": " "}]}, "policy.overrides.0: .* reason"),
        ({"overrides": [{"action": "waive", "reason": "r", "advisory": "a"}]}, "policy.overrides.0: .* expires"),
        (
            {"overrides": [{"action": "waive", "reason": "r", "advisory": "a", "expires": "soon"}]},
            "policy.overrides.0.expires: .* date",
        ),
        (
            {"overrides": [{"action": "forbid", "reason": "r", "advisory": "a"}]},
            "policy.overrides.0: .* takes no advisory",
        ),
        (
            {"overrides": [{"action": "forbid", "reason": "r", "classes": ["x"]}]},
            "policy.overrides.0: unknown request class",
        ),
    ],
)
def test_policy_settings_that_make_no_sense_are_refused(policy: dict[str, Any], message: str) -> None:
    with pytest.raises(ConfigError, match=message):
        GatewayConfig.parse({**config(), "policy": policy})


@pytest.mark.parametrize("name", ["X-Mine", "a b", "authorization", "content-length", "x-specgate-pool", ""])
def test_a_header_that_must_not_pass_cannot_be_listed(name: str) -> None:
    with pytest.raises(ConfigError, match=r"requests\.pass_headers"):
        GatewayConfig.parse({**config(), "requests": {"pass_headers": [name]}})


def test_a_fact_that_is_null_states_nothing_and_the_engine_tells_it() -> None:
    args = config(engine_args={"model": "x"}, facts={"engine_version": None, "tool_parser": "hermes"})
    parsed = GatewayConfig.parse(args)
    assert parsed.models["m"].pools["p"].facts == {"tool_parser": "hermes"}
    now = parsed.facts_now(parsed.facts_of("m", "p"), {"engine_version": "9.9", "tool_parser": "none"})
    assert (now.engine_version, now.tool_parser) == ("9.9", "hermes")


@pytest.mark.parametrize("key", ["/var/audit/key", "/var/keys/../audit/key", "/var/audit/./deep/key"])
def test_the_key_of_the_audit_log_is_not_in_its_folder_whatever_way_leads_there(key: str) -> None:
    with pytest.raises(ValueError, match="audit_key_file is in audit_dir"):
        AdminConfig(audit_dir="/var/audit", audit_key_file=key)
    assert AdminConfig(audit_dir="/var/audit", audit_key_file="/var/audit/../key").audit_key(None) is not None


def test_a_key_that_would_lie_in_the_audit_logs_folder_by_default_is_left_out() -> None:
    assert AdminConfig(audit_dir="/var/state/log/..").audit_key("/var/state") is None
    assert AdminConfig(audit_dir="/var/state/log").audit_key("/var/state") is not None
