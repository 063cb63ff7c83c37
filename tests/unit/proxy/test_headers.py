"""Headers that pass and headers that do not."""

from serve.errors import encode_json
from serve.proxy.exchange import forwarded_headers, request_headers, response_headers


def test_headers_that_the_client_names_as_its_connections_own_stay_here() -> None:
    sent = {"connection": "close, X-Hop", "x-hop": "1", "x-mine": "2"}
    assert set(forwarded_headers(sent, None)) == {"x-mine", "content-type"}


def test_only_known_private_headers_are_withheld_from_the_engine() -> None:
    sent = {"cookie": "a", "x-forwarded-host": "h", "x-specgate-pool": "p", "x-mine": "1", "te": "trailers"}
    assert forwarded_headers(sent, "key") == {
        "x-mine": "1",
        "content-type": "application/json",
        "authorization": "Bearer key",
    }


def test_the_engines_headers_pass_except_hop_by_hop_and_ours() -> None:
    sent = {"Content-Type": "a", "Retry-After": "3", "X-Specgate-Pool": "forged", "Connection": "close"}
    got = response_headers(sent)
    assert got == [(b"content-type", b"a"), (b"retry-after", b"3")]


def test_header_names_are_read_in_any_case() -> None:
    assert request_headers([(b"X-Enable-Speculative", b"true")]) == {"x-enable-speculative": "true"}


def test_json_is_compact_and_keeps_characters() -> None:
    assert encode_json({"a": "你"}) == '{"a":"你"}'.encode()
