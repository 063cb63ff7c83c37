"""The gateway's other routes at the socket: paths, methods, bodies, models, and web pages of other sites."""

import json
import time
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import anthropic
import pytest
from support.engines import answering
from support.stack import listening
from yarl import URL

from serve import VERSION
from serve.gateway.ingress import GatewayReplica

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
PAGE = {"origin": "https://app.example.com"}
PREFLIGHT = {**PAGE, "access-control-request-method": "POST", "access-control-request-headers": "content-type"}
INFERENCE = ["/v1/chat/completions", "/v1/completions", "/v1/models", "/v1/models/m"]
OPERATORS = [("POST", "/v1/route/explain"), ("GET", "/ready")]


@asynccontextmanager
async def gateway(facts: Mapping[str, Any] | None = None, **config: Any) -> AsyncIterator[str]:
    async with listening(answering()) as engine:
        pools = {
            "fast": {
                "kind": "remote",
                "url": engine.url,
                "facts": {"method": "none", "settings": {"max_model_len": 4096}},
            },
            "safe": {"kind": "remote", "url": engine.url, "facts": {"method": "none", **(facts or {})}},
        }
        model = {"family": "qwen3", "grammar": "hermes", "aliases": ["org/m"], "pools": pools}
        replica = GatewayReplica({"models": {"m": model}, **config}, [])
        async with listening(replica.app(), replica.hot) as front:
            yield front.url


async def ask(method: str, url: str, headers: Any = None, body: Any = None) -> tuple[int, dict[str, str], bytes]:
    """Sends a request whose path is not changed on its way."""
    target = URL(url, encoded=True)
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, target, headers=headers, json=body, allow_redirects=False) as response,
    ):
        return response.status, {name.lower(): value for name, value in response.headers.items()}, await response.read()


@pytest.mark.parametrize(
    "path",
    [
        "/v1/route/%65xplain", "/v1%2froute/explain", "/%76%31/route/explain", "//v1/route/explain",
        "/v1//route/explain", "/v1/./route/explain", "/v1/x/../route/explain", "/v1/%2e/route/explain",
        "/v1/models/../route/explain", "/v1/route/explain;x", "/v1/route/explain%20", "/v1/route\\explain",
    ],
)  # fmt: skip
async def test_a_path_that_only_decodes_to_a_route_is_not_that_route(path: str) -> None:
    async with gateway() as url:
        status, _, body = await ask("POST", url + path, body=CHAT)
    assert status in (400, 404, 405)
    assert json.loads(body)["error"]["code"] in ("not_found", "method_not_allowed", "invalid_request")


@pytest.mark.parametrize(
    "path", ["/metrics", "/v1/policy", "/v1/quarantine", "/admin/v1/quarantine", "/admin/v1/snapshot"]
)
async def test_what_only_operators_need_is_not_at_the_data_port(path: str) -> None:
    async with gateway() as url:
        assert [(await ask(method, url + path))[0] for method in ("GET", "POST", "HEAD", "OPTIONS")] == [404] * 4


@pytest.mark.parametrize("path", ["/v1/ch%61t/completions", "//v1/chat/completions", "/v1/x/../chat/completions"])
async def test_completions_have_no_other_path_either(path: str) -> None:
    async with gateway() as url:
        assert (await ask("POST", url + path, body=CHAT))[0] == 404


@pytest.mark.parametrize("name", ["m", "org/m", "org%2Fm", "org%2fm"])
async def test_a_model_is_found_by_its_name_however_its_slash_is_written(name: str) -> None:
    async with gateway() as url:
        status, _, body = await ask("GET", f"{url}/v1/models/{name}")
    assert (status, json.loads(body)["id"]) == (200, "m")


async def test_models_tell_their_length_and_when_the_gateway_began_to_serve_them() -> None:
    before = int(time.time())
    async with gateway() as url:
        _, _, listed = await ask("GET", f"{url}/v1/models")
        _, _, slashed = await ask("GET", f"{url}/v1/models/")
        _, _, one = await ask("GET", f"{url}/v1/models/m")
    (model,) = json.loads(listed)["data"]
    assert before <= model["created"] <= time.time()
    assert model["max_model_len"] == 4096
    assert json.loads(slashed) == json.loads(listed)
    assert json.loads(one) == model


async def test_models_are_told_in_the_form_of_the_messages_api_to_its_clients() -> None:
    async with gateway() as url, anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        page = await client.models.list()
        (model,) = [each async for each in page]
        one = await client.models.retrieve("org/m")
    assert (page.has_more, page.first_id, page.last_id) == (False, "m", "m")
    assert (model.id, model.type, model.display_name, model.max_input_tokens) == ("m", "model", "m", 4096)
    assert model.created_at.timestamp() <= time.time()
    assert one == model


async def test_the_length_of_a_model_is_what_each_of_its_pools_takes() -> None:
    async with gateway(facts={"settings": {"max_model_len": 1024}}) as url:
        assert json.loads((await ask("GET", f"{url}/v1/models/m"))[2])["max_model_len"] == 1024


@pytest.mark.parametrize("path", ["/v1/models", "/v1/models/m", "/health"])
async def test_head_is_get_without_the_body(path: str) -> None:
    async with gateway() as url:
        got = await ask("GET", url + path)
        status, headers, body = await ask("HEAD", url + path)
    assert (status, body) == (got[0], b"") == (200, b"")
    assert headers["content-type"] == got[1]["content-type"]
    assert headers.get("server") == (f"specgate/{VERSION}" if path == "/health" else None)


@pytest.mark.parametrize(
    ("method", "path", "allowed"),
    [
        ("DELETE", "/v1/models", "GET, HEAD"),
        ("GET", "/v1/chat/completions", "POST"),
        ("OPTIONS", "/v1/chat/completions", "POST"),
        ("GET", "/v1/route/explain", "POST"),
    ],
)
async def test_a_wrong_method_is_405_with_those_that_the_route_has(method: str, path: str, allowed: str) -> None:
    async with gateway() as url:
        status, headers, body = await ask(method, url + path)
    assert (status, headers["allow"], json.loads(body)["error"]["code"]) == (405, allowed, "method_not_allowed")


@pytest.mark.parametrize(
    ("method", "path", "status", "kind"),
    [
        ("POST", "/v1/messages/batches", 404, "not_found_error"),
        ("GET", "/v1/messages/msg_1", 404, "not_found_error"),
        ("GET", "/v1/messages", 405, "invalid_request_error"),
        ("DELETE", "/v1/messages/count_tokens", 405, "invalid_request_error"),
    ],
)
async def test_what_is_not_served_beside_the_messages_api_is_an_error_in_its_shape(
    method: str, path: str, status: int, kind: str
) -> None:
    async with gateway() as url:
        got, headers, body = await ask(method, url + path, {"x-request-id": "r1"})
    reply = json.loads(body)
    assert (got, reply["type"], reply["error"]["type"], reply["request_id"]) == (status, "error", kind, "r1")
    assert path in reply["error"]["message"]
    assert headers["request-id"] == "r1"
    assert headers.get("allow") == ("POST" if status == 405 else None)


async def test_clients_of_the_messages_api_read_every_error_in_its_shape() -> None:
    async with gateway() as url, anthropic.AsyncAnthropic(base_url=url, api_key="none", max_retries=0) as client:
        with pytest.raises(anthropic.NotFoundError, match="Known models: m") as unknown:
            await client.models.retrieve("nope")
        with pytest.raises(anthropic.NotFoundError, match="is not served here") as unserved:
            await client.beta.files.list()
        for failed in (unknown, unserved):
            assert failed.value.body["error"]["type"] == "not_found_error"  # type: ignore[index]
            assert failed.value.request_id


@pytest.mark.parametrize(
    ("path", "near"),
    [
        ("/v1/v1/messages", "/v1/messages"),
        ("/responses", "/v1/responses"),
        ("/models", "/v1/models"),
        ("/v1/messages/", "/v1/messages"),
        ("/v1/v1/models/", "/v1/models"),
    ],
)
async def test_a_base_url_with_a_v1_or_a_slash_too_many_or_too_few_is_named_as_the_cause(path: str, near: str) -> None:
    async with gateway() as url:
        status, _, body = await ask("POST", url + path, body=CHAT)
    assert status == 404
    assert (
        json.loads(body)["error"]["message"]
        == f"{path} is not served here, but {near} is: check the client's base URL."
    )


async def test_a_route_of_the_admin_api_is_sent_to_its_port() -> None:
    async with gateway() as url:
        status, _, body = await ask("GET", f"{url}/admin/v1/quarantine")
    assert (status, "at the admin API, which has a port of its own" in body.decode()) == (404, True)


@pytest.mark.parametrize("path", INFERENCE)
async def test_pages_get_nothing_unless_the_configuration_names_their_site(path: str) -> None:
    async with gateway() as url, gateway(http={"cors_origins": ["https://other.example.com"]}) as other:
        for each in (url, other):
            status, headers, _ = await ask("OPTIONS", each + path, PREFLIGHT)
            assert status in (400, 405)
            assert "access-control-allow-origin" not in headers
        _, headers, _ = await ask("GET", f"{other}/v1/models", PAGE)
        assert "access-control-allow-origin" not in headers


@pytest.mark.parametrize("origins", [["*"], ["https://a.example.com", "https://app.example.com"]])
async def test_pages_of_a_named_site_may_use_the_inference_routes(origins: list[str]) -> None:
    async with gateway(http={"cors_origins": origins}) as url:
        for path in INFERENCE:
            status, headers, _ = await ask("OPTIONS", url + path, PREFLIGHT)
            assert status == 200
            assert headers["access-control-allow-origin"] in ("*", PAGE["origin"])
            assert "content-type" in headers["access-control-allow-headers"].lower()
        for method, path, body in (("GET", "/v1/models", None), ("POST", "/v1/chat/completions", CHAT)):
            status, headers, _ = await ask(method, url + path, PAGE, body)
            assert (status, headers["access-control-allow-origin"] in ("*", PAGE["origin"])) == (200, True)
            assert "x-specgate-pool" in headers["access-control-expose-headers"]
        _, headers, _ = await ask("POST", f"{url}/v1/chat/completions", PAGE, {**CHAT, "model": "nope"})
        assert headers["access-control-allow-origin"] in ("*", PAGE["origin"]), "a page may read errors too"


async def test_a_streamed_answer_reaches_a_page_too() -> None:
    async with gateway(http={"cors_origins": ["*"]}) as url:
        status, headers, _ = await ask("POST", f"{url}/v1/chat/completions", PAGE, {**CHAT, "stream": True})
    assert (status, headers["access-control-allow-origin"]) == (200, "*")


@pytest.mark.parametrize("origins", [[], ["*"], [PAGE["origin"]]])
@pytest.mark.parametrize(("method", "path"), OPERATORS)
async def test_no_page_of_another_site_reaches_an_operators_route(method: str, path: str, origins: list[str]) -> None:
    async with gateway(http={"cors_origins": origins}) as url:
        for origin in (PAGE["origin"], "null", "http://127.0.0.1", url.replace("127.0.0.1", "localhost")):
            sent = CHAT if method == "POST" else None
            status, headers, body = await ask(method, url + path, {"origin": origin}, sent)
            assert (status, json.loads(body)["error"]["code"]) == (403, "cross_site")
            assert "access-control-allow-origin" not in headers
        _, headers, _ = await ask("OPTIONS", url + path, PREFLIGHT)
        assert "access-control-allow-origin" not in headers


async def test_a_page_of_the_gateways_own_address_and_a_client_without_one_reach_them() -> None:
    async with gateway() as url:
        assert (await ask("GET", f"{url}/ready", {"origin": url}))[0] == 200
        assert (await ask("POST", f"{url}/v1/route/explain", body=CHAT))[0] == 200
