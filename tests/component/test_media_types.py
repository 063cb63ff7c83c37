"""What a body says of itself, in both directions: JSON that is not encoded, or a clear refusal."""

import json
from typing import Any

import aiohttp
import pytest
from support.admin_api import Ports, serving
from support.engines import Engine, answering, end, frame, start
from support.guard_harness import tools_request
from support.guard_stack import config
from support.stack import listening, running

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ORDER = {"action": "pin", "model": "m", "pool": "speculative", "request_class": "tools_auto", "reason": "x"}
ROUTES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "hello"},
    "/v1/route/explain": CHAT,
    "/admin/v1/quarantine": ORDER,
}


async def post(url: str, body: bytes, **headers: str) -> tuple[int, Any]:
    async with (
        aiohttp.ClientSession(skip_auto_headers=["content-type"]) as session,
        session.post(url, data=body, headers={k.replace("_", "-"): v for k, v in headers.items()}) as response,
    ):
        return response.status, json.loads(await response.read())


def port_of(ports: Ports, path: str) -> str:
    return ports.admin_api if path.startswith("/admin/") else ports.data


def remote(engine_url: str) -> dict[str, Any]:
    made = config()
    for pool in made["models"]["m"]["pools"].values():
        pool |= {"kind": "remote", "url": engine_url, "facts": {"method": "none"}}
    return made


@pytest.mark.parametrize("path", ROUTES)
async def test_a_body_that_is_not_called_json_is_415_and_the_message_names_the_cure(path: str) -> None:
    body = json.dumps(ROUTES[path]).encode()
    async with listening(engine := answering()) as behind, serving(remote(behind.url)) as ports:
        url = port_of(ports, path) + path
        for headers in (
            {},
            {"content_type": "text/plain"},
            {"content_type": "application/x-www-form-urlencoded"},
            {"content_type": "text/plain; x=application/json"},
            {"content_type": "application/json, text/plain"},
            {"content_type": "application/jsonp"},
            {"content_type": ""},
        ):
            status, reply = await post(url, body, **headers)
            assert (status, reply["error"]["code"]) == (415, "unsupported_media_type"), headers
            assert "Content-Type: application/json" in reply["error"]["message"]
        assert not engine.requests
        for kind in ("application/json", "Application/JSON", "application/json; charset=utf-8"):
            status, reply = await post(url, body, content_type=kind)
            assert status == 200, reply


@pytest.mark.parametrize("path", ROUTES)
async def test_an_encoded_body_is_415(path: str) -> None:
    async with listening(answering()) as behind, serving(remote(behind.url)) as ports:
        url = port_of(ports, path) + path
        body = json.dumps(ROUTES[path]).encode()
        for coding in ("gzip", "br", "identity, gzip"):
            status, reply = await post(url, body, content_type="application/json", content_encoding=coding)
            assert (status, reply["error"]["code"]) == (415, "unsupported_media_type")
            assert "uncompressed" in reply["error"]["message"]
        plain = await post(url, body, content_type="application/json", content_encoding="identity")
        assert plain[0] == 200


async def test_without_a_body_the_error_is_about_the_body() -> None:
    async with running(config(), {("m", "speculative"): answering(), ("m", "standard"): answering()}) as stack:
        status, reply = await post(f"{stack.url}/v1/chat/completions", b"")
    assert (status, reply["error"]["code"]) == (400, "invalid_json")


async def test_an_order_longer_than_any_is_not_read() -> None:
    async with listening(answering()) as behind, serving(remote(behind.url)) as ports:
        body = json.dumps({**ORDER, "reason": "x" * 1_000_000}).encode()
        status, reply = await post(f"{ports.admin_api}/admin/v1/quarantine", body, content_type="application/json")
    assert (status, reply["error"]["code"]) == (413, "body_too_large")


ANSWER = {"choices": [{"index": 0, "message": {"role": "assistant", "content": "Hello"}, "finish_reason": "stop"}]}


def coded(coding: str) -> Engine:
    async def handler(_: Engine, send: Any, body: bytes) -> None:
        stream = json.loads(body).get("stream")
        await start(send, kind="text/event-stream" if stream else "application/json", content_encoding=coding)
        await end(send, frame("[DONE]") if stream else json.dumps(ANSWER).encode())

    return Engine(handler)


@pytest.mark.parametrize("request_body", [CHAT, {**CHAT, "stream": True}, tools_request(model="m", stream=True)])
async def test_an_engine_that_compresses_unasked_is_an_engine_error(request_body: Any) -> None:
    engine = coded("gzip")
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, reply = await post(
            f"{stack.url}/v1/chat/completions", json.dumps(request_body).encode(), content_type="application/json"
        )
    assert (status, reply["error"]["code"]) == (502, "engine_error")
    assert "gzip" in reply["error"]["message"]


async def test_an_engine_that_names_the_identity_is_understood() -> None:
    engine = coded("Identity")
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, _ = await post(
            f"{stack.url}/v1/chat/completions", json.dumps(CHAT).encode(), content_type="application/json"
        )
    assert status == 200
