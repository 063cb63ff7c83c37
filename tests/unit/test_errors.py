"""One tree of errors: OpenAI's four fields for every one, and none that a Ray handle can't carry."""

import pickle

import pytest

from serve import errors
from serve.errors import GatewayError, InvalidApiKeyError, ModelNotFoundError, QuotaError

TREE = [kind for kind in vars(errors).values() if isinstance(kind, type) and issubclass(kind, GatewayError)]


@pytest.mark.parametrize("kind", TREE)
def test_every_error_survives_pickling_with_all_it_says(kind: type[GatewayError]) -> None:
    copy = pickle.loads(pickle.dumps(kind("what", "field", "code", 2.0, {"x-ratelimit-limit-requests": "9"})))
    assert type(copy) is kind
    assert (copy.message, copy.param, copy.code, copy.retry_after_s) == ("what", "field", "code", 2.0)
    assert copy.headers.items() >= {"retry-after": "2", "x-ratelimit-limit-requests": "9"}.items()


@pytest.mark.parametrize("kind", TREE)
def test_every_error_has_openais_four_fields(kind: type[GatewayError]) -> None:
    assert set(kind("what").to_body()["error"]) == {"message", "type", "param", "code"}


def test_statuses_and_codes_are_the_documented_ones() -> None:
    documented = [line.split()[:3] for line in (errors.__doc__ or "").splitlines()]
    for kind in TREE[1:]:
        assert [kind.__name__, str(kind.status), kind.default_code] in documented


def test_an_unknown_model_names_the_known_ones() -> None:
    assert str(ModelNotFoundError.unknown("x", ["b", "a"])).endswith("Known models: a, b.")


@pytest.mark.parametrize(("wait_s", "value"), [(0.0, ""), (0.2, "1"), (2.0, "2"), (7.6, "8")])
def test_a_client_is_told_to_wait_in_whole_seconds_and_never_zero(wait_s: float, value: str) -> None:
    assert GatewayError("what", None, None, wait_s).headers.get("retry-after", "") == value


def test_a_refused_key_gets_the_challenge_that_every_401_must_have() -> None:
    assert InvalidApiKeyError("no").headers == {"www-authenticate": "Bearer", "x-should-retry": "false"}


def test_a_client_whose_quota_is_used_up_is_told_not_to_try_again() -> None:
    assert QuotaError("used up").headers == {"x-should-retry": "false"}
