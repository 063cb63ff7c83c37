"""Facts that contradict each other are found by name: a drafter of another model, weights of another version."""

import pytest

from policies import PoolFacts
from serve.config.contradictions import contradictions, wrong_pair
from serve.config.gateway import GatewayConfig


@pytest.mark.parametrize(
    ("family", "version", "drafter", "wrong"),
    [
        ("kimi-k2", "2", "/model_files/Kimi-K2.5-Thinking-Eagle3", False),
        ("kimi-k2", "2.5", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.6", "nvidia/Kimi-K2.5-Thinking-Eagle3", True),
        ("kimi-k2", "2.5", "Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.5-eagle3", True),
        ("kimi-k2", "2.6", "AQ-MedAI/Kimi-K26-eagle3", False),
        ("kimi-k2", "2.6", "lightseekorg/kimi-k2.6-eagle3.1-mla", False),
        ("kimi-k2", "2.6", "~/hub/models--lightseekorg--kimi-k2.5-eagle3/snapshots/abc", True),
        ("qwen3-coder", None, "org/Qwen3-0.6B", False),
        ("qwen3.6", "3.6", "org/Qwen3.5-eagle3", True),
        ("qwen3", None, "org/Kimi-K2.5-Eagle3", True),
        ("kimi-k2", "2.6", "models/tiny-kimi-eagle3", False),
        ("llama", None, "org/Kimi-K2.5-Eagle3", False),
        ("kimi-k2", "2.6", "none", False),
        ("kimi-k2", "2.6", None, False),
    ],
)
def test_a_pair_is_wrong_when_the_drafter_is_for_another_series_or_version(family, version, drafter, wrong):
    facts = PoolFacts("m", "p", family=family, model_version=version, drafter=drafter, method="eagle3")
    assert (wrong_pair(facts) is not None) is wrong


@pytest.mark.parametrize(("methods", "wrong"), [(("none", "eagle3"), True), (("none", "none"), False)])
def test_one_engine_in_two_pools_has_one_method(methods, wrong):
    pools = {name: remote(None, method=name_of) for name, name_of in zip("ab", methods, strict=True)}
    config = GatewayConfig.parse({"models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}}})
    assert [(pool, "the same engine" in text) for _, pool, text in contradictions(config)] == [("b", True)] * wrong


def found(pool, family="kimi-k2", version="2.6", **model):
    values = {"family": family, "version": version, "grammar": "kimi_k2", **model, "pools": {"p": pool}}
    return [text for _, _, text in contradictions(GatewayConfig.parse({"models": {"m": values}}))]


def remote(name, **facts):
    return {"kind": "remote", "url": "http://h:1", "served_name": name, "facts": {"method": "none", **facts}}


def test_a_wrong_pair_says_what_it_breaks_and_what_to_do():
    spec = {"method": "eagle3", "model": "org/kimi-k2.6-eagle3", "num_speculative_tokens": 3}
    (text,) = found({"engine_args": {"model": "org/Kimi-K2.5", "speculative-config": spec}}, version="2.5")
    assert "cut tool-call arguments" in text
    assert "correct `family` and `version`" in text


@pytest.mark.parametrize(
    ("name", "version", "wrong"),
    [
        ("/model_files/h20/Kimi-K2.5", "2.6", True),
        ("moonshotai/Kimi-K2.6", "2.6", False),
        ("moonshotai/Kimi-K2.6", "2.5", True),
        ("moonshotai/Kimi-K2.6", "2", True),
        ("kimi-k2", "2.6", False),
        ("Qwen/Qwen3-32B", "2.6", True),
        ("my-model", "2.6", False),
        ("moonshotai/Kimi-K2.6", None, False),
        ("~/hub/models--moonshotai--Kimi-K2.5/snapshots/abc", "2.6", True),
    ],
)
def test_weights_whose_name_tells_another_version_contradict_the_facts(name, version, wrong):
    assert bool(found(remote(name), version=version)) is wrong
    assert bool(found({"engine_args": {"model": name}}, version=version)) is wrong
    assert not found(remote(name, model_version=version or "2.6"), version=version)


@pytest.mark.parametrize(
    ("name", "stated", "wrong"),
    [
        ("nvidia/Kimi-K2.6-NVFP4", {}, True),
        ("nvidia/Kimi-K2.6-NVFP4", {"quantization": "nvfp4"}, False),
        ("nvidia/Kimi-K2.6-NVFP4", {"quantization": "fp8"}, True),
        ("org/Kimi-K2.6", {"quantization": "fp8"}, False),
    ],
)
def test_weights_whose_name_tells_another_variant_contradict_the_facts(name, stated, wrong):
    assert bool(found(remote(name), **stated)) is wrong
    assert not found(remote(name, quantization="none"), **stated)
