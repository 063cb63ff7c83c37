"""Headers that pass and headers that do not."""

import pytest
from hypothesis import given
from hypothesis import strategies as st

from serve.errors import encode_json
from serve.proxy.headers import forwarded_headers, request_headers, response_headers
from serve.request.completion import parse
from serve.request.features import features_of


def test_headers_that_the_client_names_as_its_connections_own_stay_here() -> None:
    sent = {"connection": "close, User-Agent", "user-agent": "1", "accept": "2"}
    assert set(forwarded_headers(sent, None)) == {"accept", "content-type", "accept-encoding"}


WITHHELD = [
    "authorization",
    "api-key",
    "x-api-key",
    "x-goog-api-key",
    "x-auth-token",
    "x-amz-security-token",
    "x-amz-date",
    "cookie",
    "baggage",
    "cf-access-client-secret",
    "cf-connecting-ip",
    "true-client-ip",
    "x-forwarded-for",
    "forwarded",
    "via",
    "x-vllm-priority",
    "x-data-parallel-rank",
    "x-specgate-pool",
    "x-enable-speculative",
    "content-encoding",
    "te",
    "x-anything-else",
]


@pytest.mark.parametrize("name", WITHHELD)
def test_a_header_that_is_not_on_the_list_is_withheld_from_the_engine(name: str) -> None:
    assert "secret" not in forwarded_headers({name: "secret"}, None).values()


def test_listed_headers_reach_the_engine_with_our_own() -> None:
    sent = {"x-mine": "1", "x-other": "2", "accept": "a", "accept-encoding": "gzip", "authorization": "theirs"}
    assert forwarded_headers(sent, "key", ("x-mine",)) == {
        "accept": "a",
        "x-mine": "1",
        "content-type": "application/json",
        "accept-encoding": "identity",
        "authorization": "Bearer key",
    }


def test_the_engines_headers_pass_except_hop_by_hop_and_ours() -> None:
    sent = {"content-type": "a", "retry-after": "3", "x-specgate-pool": "forged", "connection": "close"}
    got = response_headers(sent)
    assert got == [(b"content-type", b"a"), (b"retry-after", b"3")]


@pytest.mark.parametrize(
    "name",
    [
        "clear-site-data", "refresh", "location", "content-location", "access-control-allow-origin", "alt-svc", "link",
        "strict-transport-security", "set-cookie", "set-cookie2", "www-authenticate", "content-security-policy", "nel",
        "report-to", "x-accel-redirect", "x-sendfile", "service-worker-allowed", "server", "via", "x-request-id",
        "x-specgate-pool", "transfer-encoding", "content-length", "content-disposition", "sourcemap", "of-tomorrow",
        "x-frame-options", "x-middleware-rewrite", "x-http-method-override", "x-inertia-location", "x-sourcemap",
        "x-original-url", "openai-organization", "anthropic-organization-id", "x-of-tomorrow",
    ],
)  # fmt: skip
def test_what_browsers_and_proxies_obey_does_not_come_from_an_engine(name: str) -> None:
    assert response_headers({"content-type": "a", name: "1"}) == [(b"content-type", b"a")]


@given(st.lists(st.sampled_from(["true", "false", " False", "false, true"]), min_size=1))
def test_an_opt_out_wins_in_whatever_order_the_header_is_sent(said: list[str]) -> None:
    headers = request_headers([(b"x-session-id", b"1"), *[(b"x-enable-speculative", each.encode()) for each in said]])
    wanted = not any("false" in each.lower() for each in said)
    assert features_of(parse(b'{"model": "m", "messages": []}'), headers).preference is wanted


def test_of_other_headers_of_one_name_the_last_counts() -> None:
    assert request_headers([(b"x-a", b"1"), (b"x-a", b"2")]) == {"x-a": "2"}


def test_json_is_compact_and_keeps_characters() -> None:
    assert encode_json({"a": "你"}) == '{"a":"你"}'.encode()
