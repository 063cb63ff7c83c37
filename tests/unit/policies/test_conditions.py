import pytest

from policies import PolicyError, PoolFacts
from policies.conditions import check, short_name, unknowns, unmet


def facts(**known):
    return PoolFacts(model="m", pool="p", **known)


@pytest.mark.parametrize(
    ("name", "condition", "actual", "holds"),
    [
        ("engine_version", "<0.20", "0.19.1", True),
        ("engine_version", "<0.20", "0.20.0", False),
        ("engine_version", "<0.20", "0.20.0rc1", True),  # it may lack what 0.20 has
        ("engine_version", "<0.20", "0.19.2rc1", True),
        ("engine_version", ">=0.20", "0.20.1.dev0", True),
        ("engine_version", "<=0.32", "0.32.0+cpu", True),
        ("engine_version", ">=0.24,<0.32", "0.31.1", True),
        ("engine_version", ">=0.24,<0.32", "0.32.0+cpu", False),
        ("engine_version", {"not": "<0.20"}, "0.19.0", False),
        ("model_version", "==2.6", "2.6", True),
        ("model_version", "==2.6", "2.5", False),
        ("family", "kimi*", "Kimi-K2", True),
        ("family", ["qwen3", "qwen3.*"], "qwen3.6", True),
        ("family", "kimi*", "qwen3", False),
        ("drafter", ["kimi-k2.6-eagle3"], "lightseekorg/kimi-k2.6-eagle3", True),
        ("drafter", ["kimi-k2.6-eagle3"], "/models/Kimi-K2.6-Eagle3/", True),
        ("drafter", ["kimi-k2.6-eagle3"], "lightseekorg/kimi-k2.6-eagle3-mla", False),
        ("drafter", ["kimi-k2.6-eagle3"], "/hub/models--org--kimi-k2.6-eagle3/snapshots/0ab1", True),
        ("drafter", {"not": ["kimi-k2.6-eagle3"]}, "org/other", True),
        ("method", ["ngram"], "eagle3", False),
        ("num_speculative_tokens", ">=2", 3, True),
        ("num_speculative_tokens", ">=2", 1, False),
        ("num_speculative_tokens", ">=5,<7", 6, True),
        ("num_speculative_tokens", ">=5,<7", 7, False),
        ("hybrid", True, True, True),
        ("prefix_caching", True, False, False),
        ("runner", "v1", "v2", False),
    ],
)
def test_a_condition_holds_or_not(name, condition, actual, holds):
    known = facts(**{name: actual})
    assert unmet({name: condition}, known) is not holds
    assert unknowns({name: condition}, known) == ()


@pytest.mark.parametrize(
    ("drafter", "owned"),
    [
        ("nvidia/Kimi-K2.6-Eagle3", True),
        ("/hub/models--nvidia--Kimi-K2.6-Eagle3/snapshots/0ab1", True),
        ("lightseekorg/kimi-k2.6-eagle3", False),
        ("/nvidia/Kimi-K2.6-Eagle3", False),  # folders are named as people like
        ("./nvidia", False),
        ("Kimi-K2.6-Eagle3", False),
    ],
)
def test_a_drafters_owner_is_known_from_its_name_on_the_hub_only(drafter, owned):
    assert unmet({"drafter_owner": "nvidia"}, facts(drafter=drafter)) is not owned
    assert unmet({"drafter_owner": {"not": "nvidia"}}, facts(drafter=drafter)) is owned
    assert unknowns({"drafter_owner": "nvidia"}, facts(drafter=drafter)) == ()
    assert unknowns({"drafter_owner": "nvidia"}, facts()) == ("drafter_owner",)


@pytest.mark.parametrize(
    ("condition", "actual", "holds"),
    [
        ("<8", 2, True),
        ("<8", 8, False),
        (">=0.5", 0.5, True),
        (["a", "b"], "b", True),
        (True, True, True),
        ("x", "y", False),
    ],
)
def test_settings_are_compared_too(condition, actual, holds):
    assert unmet({"settings": {"s": condition}}, facts(settings={"s": actual})) is not holds


def test_what_is_not_known_is_neither_met_nor_unmet():
    conditions = {"engine_version": "<0.20", "hybrid": True, "settings": {"s": "<8"}}
    assert not unmet(conditions, facts())
    assert unknowns(conditions, facts()) == ("engine_version", "hybrid", "settings.s")
    assert unknowns({"engine_version": "<0.20"}, facts(engine_version="main")) == ("engine_version",)
    assert unknowns({"settings": {"s": "<8"}}, facts(settings={"s": "many"})) == ("settings.s",)
    assert unmet({**conditions, "engine": "vllm"}, facts(engine="sglang"))


def test_no_speculation_is_known():
    assert unmet({"method": ["ngram"]}, facts())
    assert unmet({"method": {"not": "ngram"}}, facts())


@pytest.mark.parametrize("conditions", [{"engine_version": "0.20 or so"}, {"settings": {"s": "<eight"}}])
def test_conditions_without_meaning_are_refused_when_read(conditions):
    with pytest.raises(PolicyError):
        check(conditions)


def test_short_name():
    assert short_name("org/name") == short_name("/a/b/name/") == "name"
