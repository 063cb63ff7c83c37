"""What a client gets to read when an engine refuses."""

import json

import pytest

from serve.proxy.relay import readable_refusal

HTML = [(b"content-type", b"text/html"), (b"retry-after", b"3")]
OPENAI = (
    b'{"error": {"message": "too long", "type": "BadRequestError", "param": null, "code": 400}}',
    b'{"error":"too long"}',
    b' {"id": 1, "error": {}}\n',
)


@pytest.mark.parametrize("body", OPENAI)
def test_a_refusal_that_clients_can_read_passes_byte_for_byte(body: bytes) -> None:
    assert readable_refusal(400, HTML, body) == (HTML, body)


@pytest.mark.parametrize("around", ['{"error":{"message":"%s"}}', "<p>%s</p>"])
def test_a_refusal_tells_no_address_in_the_engines_memory(around: str) -> None:
    said = "cannot identify image file <_io.BytesIO object at 0x7a95e299e750>, and not 0x10"
    _, readable = readable_refusal(400, HTML, (around % said).encode())
    assert b"image file <_io.BytesIO object>, and not 0x10" in readable


@pytest.mark.parametrize("body", [b'{"error":"at 8.8.8.8"}', b'{"error":"vllm 10.1.2, 172.40.1.1, 1.10.0.0.1"}'])
def test_other_addresses_and_versions_are_told(body: bytes) -> None:
    assert readable_refusal(400, HTML, body) == (HTML, body)


@pytest.mark.parametrize(
    ("status", "body", "kind", "message"),
    [
        (422, b'{"detail": [{"msg": "x"}]}', "invalid_request_error", 'status 422: [{"msg":"x"}]'),
        (404, b'{"detail": "Not Found"}', "invalid_request_error", "status 404: Not Found"),
        (400, b'{"object": "error", "message": "no such model"}', "invalid_request_error", "status 400: no such model"),
        (400, b'{"error": null}', "invalid_request_error", 'status 400: {"error":null}'),
        (400, b"null", "invalid_request_error", "status 400."),
        (400, b"", "invalid_request_error", "status 400."),
        (503, b"<html>busy</html>\n", "upstream_error", "status 503: <html>busy</html>"),
        (500, b'\xff"', "upstream_error", 'status 500: \ufffd"'),
        (500, b"[" * 100_000, "upstream_error", "status 500: " + "[" * 1000),
    ],
)
def test_one_that_they_cannot_read_gets_openais_shape_and_keeps_the_engines_words(
    status: int, body: bytes, kind: str, message: str
) -> None:
    headers, readable = readable_refusal(status, HTML, body)
    assert headers == [(b"retry-after", b"3"), (b"content-type", b"application/json")]
    assert json.loads(readable) == {
        "error": {
            "message": f"The engine answered with {message}",
            "type": kind,
            "param": None,
            "code": "engine_error",
        }
    }
