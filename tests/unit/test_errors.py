"""One tree of errors: OpenAI's four fields for every one, and none that a Ray handle can't carry."""

import pickle
from types import MappingProxyType

import pytest
from ray.exceptions import RayTaskError

from serve import errors
from serve.errors import GatewayError, InvalidApiKeyError, ModelNotFoundError, OverloadedError, QuotaError

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_survives_pickling_with_all_it_says(kind: type[GatewayError]) -> None:
    headers = MappingProxyType({"x-ratelimit-limit-requests": "9"})
    error = kind("what", param="field", code="code", retry_after_s=2.0, headers=headers)
    copy = pickle.loads(pickle.dumps(error))
    assert type(copy) is kind
    assert (str(copy), copy.param, copy.code, copy.retry_after_s) == ("what", "field", "code", 2.0)
    assert copy.headers.items() >= {"retry-after": "2", "x-ratelimit-limit-requests": "9"}.items()


@pytest.mark.parametrize("kind", TREE)
def test_every_error_that_says_no_more_than_a_message_survives_pickling(kind: type[GatewayError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what")))
    assert (type(copy), copy.to_body(), copy.headers) == (kind, kind("what").to_body(), kind("what").headers)


def test_an_error_survives_rays_wrapping() -> None:
    """A handle raises an error of both Ray's kind and ours, which must say as much as ours."""
    wrapped = RayTaskError("replica", "traceback", OverloadedError("full", retry_after_s=3)).as_instanceof_cause()
    copy = pickle.loads(pickle.dumps(wrapped.cause))
    assert isinstance(wrapped, OverloadedError)
    assert (copy.message, copy.headers) == ("full", {"retry-after": "3"})


@pytest.mark.parametrize("kind", TREE)
def test_what_an_error_says_beside_its_message_is_named(kind: type[GatewayError]) -> None:
    with pytest.raises(TypeError):
        kind("what", "field")  # type: ignore[misc]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_openais_four_fields(kind: type[GatewayError]) -> None:
    assert set(kind("what").to_body()["error"]) == {"message", "type", "param", "code"}


def test_statuses_and_codes_are_the_documented_ones() -> None:
    documented = [line.split()[:3] for line in (errors.__doc__ or "").splitlines()]
    for kind in TREE[1:]:
        assert [kind.__name__, str(kind.status), kind.default_code] in documented


def test_an_unknown_model_names_the_known_ones() -> None:
    assert str(ModelNotFoundError.unknown("x", ["b", "a"])).endswith("Known models: a, b.")


@pytest.mark.parametrize(("wait_s", "value"), [(0.0, ""), (0.2, "1"), (1.4, "2"), (2.0, "2"), (7.6, "8")])
def test_a_client_is_told_to_wait_in_whole_seconds_and_never_too_short(wait_s: float, value: str) -> None:
    assert GatewayError("what", retry_after_s=wait_s).headers.get("retry-after", "") == value


def test_a_refused_key_gets_the_challenge_that_every_401_must_have() -> None:
    assert InvalidApiKeyError("no").headers == {"www-authenticate": "Bearer", "x-should-retry": "false"}


def test_a_client_whose_quota_is_used_up_is_told_not_to_try_again() -> None:
    assert QuotaError("used up").headers == {"x-should-retry": "false"}
