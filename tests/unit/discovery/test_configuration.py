"""Engines of one model become its pools by what they are; what the operator states holds unless an engine denies it."""

from typing import Any

import pytest

from policies import PolicyError
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.discovery.configuration import StatedFact, complete, models_of
from serve.discovery.reading import Finding, FoundEngine
from serve.errors import ConfigError


def engine(url: str, names: tuple[str, ...] = ("m",), **facts: Any) -> FoundEngine:
    told = {"served_names": names, "root": "/w", "engine": "vllm", "engine_version": "0.32.0", **facts}
    if told.get("speculates") is False:
        told["method"] = "none"
    return FoundEngine(url, None, {name: Finding(value, "test", "certain") for name, value in told.items()})


STANDARD = engine("http://a", speculates=False)


def test_equal_engines_share_a_pool_and_others_have_their_own() -> None:
    models = models_of([STANDARD, engine("http://b", speculates=True), engine("http://c", speculates=False)])
    pools = models["m"]["pools"]
    assert {name: pool["urls"] for name, pool in pools.items()} == {
        "standard": ["http://a", "http://c"],
        "speculative": ["http://b"],
    }
    assert [pools[name]["facts"]["method"] for name in pools] == ["none", "unknown"]


def test_versions_do_not_share_a_pool() -> None:
    pools = models_of([STANDARD, engine("http://b", speculates=False, engine_version="0.33.0")])["m"]["pools"]
    assert list(pools) == ["standard", "standard-2"]


def test_builds_of_one_version_may_be_in_one_pool() -> None:
    args = {"models": {"m": {"pools": {"p": {"kind": "remote", "urls": ["http://a", "http://b"]}}}}}
    engines = [STANDARD, engine("http://b", speculates=False, engine_version="0.32.0+cu129")]
    whole = complete(args, GatewayConfig.parse(args), {("m", "p"): engines})
    assert whole["models"]["m"]["pools"]["p"]["facts"]["engine_version"] == "0.32.0"


@pytest.mark.parametrize("family", ["qwen3", "Qwen3", "Qwen/Qwen3"])
def test_a_family_may_be_written_as_the_weights_are_called(family: str) -> None:
    args = {"models": {"m": {"family": family, "pools": {"p": {"kind": "remote", "url": "http://a"}}}}}
    found = {("m", "p"): [engine("http://a", speculates=False, family="qwen3")]}
    assert complete(args, GatewayConfig.parse(args), found)["models"]["m"]["pools"]["p"]["facts"]["method"] == "none"


def test_an_engine_that_serves_the_weights_under_another_name_is_a_pool_of_the_same_model() -> None:
    models = models_of([STANDARD, engine("http://b", ("/w",), speculates=True)])
    assert list(models) == ["m"]
    assert models["m"]["pools"]["speculative"]["served_name"] == "/w"


def test_an_adapter_is_a_model_of_its_own_on_the_same_engines() -> None:
    models = models_of([engine("http://a", ("m", "also-m"), speculates=False, adapters=("lora",))])
    assert list(models) == ["m", "lora"]
    assert models["m"]["aliases"] == ["also-m"]
    assert models["lora"]["pools"]["standard"]["served_name"] == "lora"
    assert "aliases" not in models["lora"]


def test_models_behind_a_router_are_unknown_in_every_respect() -> None:
    models = models_of([engine("http://a", ("x", "y"), several=2, speculates=False)])
    assert [model["pools"]["unknown"]["facts"] for model in models.values()] == [{"method": "unknown"}] * 2


def test_what_is_found_is_a_valid_configuration() -> None:
    models = models_of([STANDARD, engine("http://b", ("weird name !", "org/m"), speculates=True, root="/other")])
    facts = compile_for(GatewayConfig.parse({"models": models})).facts
    assert [(each.model, each.method, each.family) for each in facts] == [
        ("m", None, None),
        ("weird-name-", "unknown", None),
    ]


def test_an_unknown_family_meets_every_advisory_about_one() -> None:
    named = {**models_of([engine("http://b", speculates=True)])["m"], "family": "llama-3"}
    unknown = models_of([engine("http://b", speculates=True)])["m"]
    rules = [
        set(compile_for(GatewayConfig.parse({"models": {"m": model}})).to_dict()["models"]["m"][0]["rules"])
        for model in (named, unknown)
    ]
    assert rules[0] <= rules[1]


def test_a_stated_fact_is_kept() -> None:
    stated = [StatedFact.of("speculative.method=eagle3"), StatedFact.of("m.family=kimi-k2")]
    models = models_of([STANDARD, engine("http://b", speculates=True)], stated)
    assert models["m"]["pools"]["speculative"]["facts"]["method"] == "eagle3"
    assert (models["m"]["family"], "hybrid" in models["m"]) == ("kimi-k2", False)


@pytest.mark.parametrize(
    ("text", "message"),
    [
        ("speculative.method=none", "it drafts"),
        ("m/speculative.engine_version=0.19.1", "the engine says 0.32.0"),
        ("nowhere.method=mtp", "there is no such pool"),
        ("method=mtp", "not of the form"),
        ("speculative.method", "not of the form"),
        ("speculative.drafter=[x", "drafter can't be read"),
    ],
)
def test_a_statement_that_can_not_hold_is_refused_with_a_reason(text: str, message: str) -> None:
    with pytest.raises((ConfigError, PolicyError), match=message):
        models_of([STANDARD, engine("http://b", speculates=True)], [StatedFact.of(text)])


@pytest.mark.parametrize("name", ["model_version", "engine_version", "family"])
def test_a_version_is_stated_as_it_is_written(name: str) -> None:
    assert StatedFact.of(f"speculative.{name}=2.60").value == "2.60"


def test_a_pool_name_that_two_models_have_must_be_told_apart() -> None:
    engines = [STANDARD, engine("http://b", ("n",), speculates=False, root="/n")]
    with pytest.raises(ConfigError, match="write MODEL/POOL"):
        models_of(engines, [StatedFact.of("standard.runner=v1")])
    assert (
        models_of(engines, [StatedFact.of("n/standard.runner=v1")])["n"]["pools"]["standard"]["facts"]["runner"] == "v1"
    )
