"""`:nospec` behind a model's name."""

import json

import pytest

from serve.config.names import ModelNames
from serve.request.completion import parse
from serve.request.features import features_of
from serve.request.model_suffix import put_own_name, take_suffix
from serve.request.patch import BodyPatch

KNOWN = {"m", "org/model:latest", "odd:nospec"}


def asked(model: str, **fields: object) -> tuple[str, bool | None]:
    """The model that the engine is asked for, and the preference that the policy sees."""
    body = json.dumps({"model": model, "messages": [], **fields}).encode()
    request = parse(body)
    patch = BodyPatch()
    take_suffix(patch, request, KNOWN)
    changed = json.loads(patch.apply(body))
    assert changed["model"] == request.model
    assert {**changed, "model": model} == json.loads(body)
    return request.model, features_of(request, {}).preference


@pytest.mark.parametrize(
    ("model", "served", "preference"),
    [
        ("m:nospec", "m", False),
        ("org/model:latest:nospec", "org/model:latest", False),
        ("odd:nospec", "odd:nospec", None),
        ("odd:nospec:nospec", "odd:nospec", False),
        ("unknown:nospec", "unknown:nospec", None),
        (":nospec", ":nospec", None),
    ],
)
def test_the_suffix_forbids_speculation_unless_it_is_part_of_a_name(
    model: str, served: str, preference: bool | None
) -> None:
    assert asked(model) == (served, preference)


def test_the_suffix_wins_over_a_field_that_asks_for_speculation() -> None:
    assert asked("m:nospec", enable_speculative=True) == ("m", False)


def test_what_a_pattern_matches_reaches_the_engine_under_the_models_own_name_with_its_suffix() -> None:
    names = ModelNames([("m", "m"), ("claude-*", "m")])
    body = json.dumps({"model": "claude-opus-4:nospec", "messages": []}).encode()
    request, patch = parse(body), BodyPatch()
    take_suffix(patch, request, names)
    put_own_name(patch, request, names)
    assert json.loads(patch.apply(body))["model"] == request.model == "m"
    assert features_of(request, {}).preference is False
