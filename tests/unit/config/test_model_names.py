"""Which name leads to which model: exact ones first, then patterns, and never two."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.config.gateway import GatewayConfig
from serve.config.model_names import ModelNames, ambiguous
from serve.errors import ConfigError

PART = st.text("ab-", max_size=3)
PATTERN = st.tuples(PART, PART).map("*".join)
POOL = {"kind": "sim"}


def configured(**aliases: list[str]) -> GatewayConfig:
    models: dict[str, Any] = {
        name: {"family": "sim", "grammar": "hermes", "aliases": given, "pools": {"p": POOL}}
        for name, given in aliases.items()
    }
    return GatewayConfig.parse({"models": models})


@pytest.mark.parametrize(
    ("asked", "served"),
    [
        ("kimi", "kimi"), ("claude-sonnet-4-5", "kimi"), ("claude-", "kimi"), ("claude-haiku-4-5", "qwen"),
        ("gpt-5-mini", "qwen"), ("gpt-mini", None), ("gpt-5", None), ("claude", None), ("claude-x:nospec", None),
        ("", None), ("*", None),
    ],
)  # fmt: skip
def test_a_name_that_is_written_out_goes_before_a_pattern(asked: str, served: str | None) -> None:
    config = configured(kimi=["claude-*"], qwen=["claude-haiku-4-5", "gpt-*-mini"])
    assert ModelNames(config.each_name()).own_name(asked) == served


@pytest.mark.parametrize(("one", "other"), [("claude-*", "claude-haiku-*"), ("*", "gpt-*"), ("*-mini", "gpt-*")])
def test_patterns_of_two_models_that_one_name_may_match_are_refused(one: str, other: str) -> None:
    with pytest.raises(ConfigError, match="the same name may match"):
        configured(kimi=[one], qwen=[other])
    assert ModelNames(configured(kimi=[one, other]).each_name()).own_name("gpt-haiku-mini") in ("kimi", None)


@pytest.mark.parametrize("alias", ["a*b*c", "**", "-x", "a b*", "a:*"])
def test_what_is_no_pattern_is_refused(alias: str) -> None:
    with pytest.raises(ConfigError, match="aliases"):
        configured(kimi=[alias])


@given(PATTERN, PATTERN, st.text("ab-", max_size=8))
def test_patterns_that_are_let_through_never_match_the_same_name(one: str, other: str, name: str) -> None:
    both = [(one, "m"), (other, "n")]
    if not list(ambiguous(both)):
        assert not (name in ModelNames(both[:1]) and name in ModelNames(both[1:]))


@given(PATTERN, PATTERN)
def test_patterns_that_are_refused_do_match_the_same_name(one: str, other: str) -> None:
    if one != other and list(ambiguous([(one, "m"), (other, "n")])):
        (before, _, after), (others_before, _, others_after) = one.partition("*"), other.partition("*")
        name = max(before, others_before, key=len) + max(after, others_after, key=len)
        assert name in ModelNames([(one, "m")])
        assert name in ModelNames([(other, "n")])


def test_engines_are_told_the_names_that_are_written_out_alone() -> None:
    assert configured(kimi=["k2", "claude-*"]).models["kimi"].exact_aliases == ("k2",)
