"""Who may use the gateway, over real HTTP: decided before a body is read, and no key seen anywhere else."""

import asyncio
import gc
import json
import logging
from collections.abc import AsyncIterator, Mapping
from contextlib import asynccontextmanager
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any
from urllib.parse import urlsplit

import aiohttp
import httpx
import pytest
from opentelemetry.sdk.trace.export.in_memory_span_exporter import InMemorySpanExporter
from support.clock import until
from support.engines import Engine, answering
from support.stack import listening

from serve.access.key_file import KeyTerms
from serve.access.key_record import IssuedKey
from serve.access.key_store import KeyStore
from serve.access.key_text import new_id, new_token
from serve.gateway import ingress
from serve.gateway.ingress import GatewayReplica
from serve.proxy.exchange import Exchange
from serve.telemetry.instruments import Telemetry

CHAT: dict[str, Any] = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
MESSAGES: dict[str, Any] = {**CHAT, "max_tokens": 9}
RESPONSES: dict[str, Any] = {"model": "m", "input": "hello"}
BODIES = {
    "/v1/chat/completions": CHAT,
    "/v1/completions": {"model": "m", "prompt": "hello"},
    "/v1/messages": MESSAGES,
    "/v1/messages/count_tokens": MESSAGES,
    "/v1/responses": RESPONSES,
    "/v1/responses/input_tokens": RESPONSES,
    "/v1/route/explain": CHAT,
}
STRANGER = new_token(new_id())


class Gateway:
    """A running gateway with a store of keys."""

    def __init__(self, url: str, store: KeyStore, replica: GatewayReplica) -> None:
        self.url = url
        self.store = store
        self.replica = replica

    async def key(self, **terms: Any) -> IssuedKey:
        """Makes a key that the gateway knows."""
        issued = self.store.create(KeyTerms.model_validate({"tenant": "red", **terms}))
        await self.merge()
        return issued

    async def merge(self) -> None:
        """Lets the gateway hear of changes now, and not within the second."""
        await self.replica.access.refresh()

    async def ask(
        self, path: str, token: str | None = None, body: Any = None, headers: Mapping[str, str] | None = None
    ) -> tuple[int, dict[str, str], Any]:
        """Sends a request; a POST if there is a body."""
        sent = {**({"authorization": f"Bearer {token}"} if token else {}), **(headers or {})}
        method = "GET" if body is None else "POST"
        async with (
            aiohttp.ClientSession() as session,
            session.request(method, f"{self.url}{path}", json=body, headers=sent) as response,
        ):
            text = await response.text()
            content = json.loads(text) if response.content_type == "application/json" else text
            return response.status, {name.lower(): value for name, value in response.headers.items()}, content


@asynccontextmanager
async def gateway(
    folder: Path,
    engine: Engine | None = None,
    limits: Mapping[str, Any] | None = None,
    telemetry: Mapping[str, Any] | None = None,
    **access: Any,
) -> AsyncIterator[Gateway]:
    async with listening(engine or answering()) as behind:
        pools = {"pool": {"kind": "remote", "url": behind.url, "facts": {"method": "none"}}}
        model = {"family": "qwen3", "grammar": "hermes", "pools": pools}
        models = {"m": {**model, "aliases": ["alias"]}, "secret/model": model}
        access = {"mode": "required", "state_dir": str(folder), **access}
        settings = {"models": models, "access": access, "limits": limits or {}, "telemetry": telemetry or {}}
        replica = GatewayReplica(settings, [])
        store = KeyStore(folder)
        async with listening(replica.app(), replica.hot, replica.allowance) as front:
            served = Gateway(front.url, store, replica)
            await served.merge()
            yield served
        store.close()


@pytest.mark.parametrize("path", [*BODIES, "/v1/models", "/v1/models/m", "/v1/nothing"])
async def test_without_a_valid_key_nothing_is_served(tmp_path: Path, path: str) -> None:
    async with gateway(tmp_path) as served:
        for token in (None, STRANGER, "none"):
            status, headers, body = await served.ask(path, token, BODIES.get(path))
            if path == "/v1/nothing":
                assert status == 404
                continue
            assert (status, headers["www-authenticate"]) == (401, "Bearer")
            assert headers["x-should-retry"] == "false"
            assert STRANGER not in json.dumps(body)


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages", "/v1/responses"])
@pytest.mark.parametrize(
    ("known", "change", "status"),
    [(False, {}, 401), (True, {}, 200), (True, {"model": "other"}, 404), (True, {"stream": "x"}, 400)],
)
async def test_a_request_leaves_nothing_to_the_garbage_collector(
    tmp_path: Path, path: str, known: bool, change: dict[str, Any], status: int
) -> None:
    """A refused key's error and the frame that kept it held each other: whoever guesses had the collector at work."""
    async with gateway(tmp_path) as served:
        token = (await served.key()).token if known else STRANGER
        gc.collect()
        gc.disable()
        try:
            for _ in range(3):
                found, _, _ = await served.ask(path, token, {**BODIES[path], **change})
                assert found // 100 == status // 100  # each API has a number of its own for each fault
            left = [each for each in gc.get_objects() if isinstance(each, Exchange)]
        finally:
            gc.enable()
    assert not left


@pytest.mark.parametrize("path", BODIES)
async def test_a_valid_key_is_served_in_either_header(tmp_path: Path, path: str) -> None:
    async with gateway(tmp_path) as served:
        issued = await served.key(scopes=("infer", "explain"))
        for how in ({"authorization": f"Bearer {issued.token}"}, {"x-api-key": issued.token}):
            status, _, body = await served.ask(path, None, BODIES[path], how)
            assert status == 200, body


async def test_each_api_words_a_refused_key_as_its_clients_read_it(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served:
        _, _, chat = await served.ask("/v1/chat/completions", STRANGER, CHAT)
        _, _, messages = await served.ask("/v1/messages", None, MESSAGES, {"x-api-key": STRANGER})
        _, _, counted = await served.ask("/v1/messages/count_tokens", STRANGER, MESSAGES)
        _, _, responses = await served.ask("/v1/responses", STRANGER, {**RESPONSES, "stream": True})
    assert (chat["error"]["code"], chat["error"]["type"]) == ("invalid_api_key", "invalid_request_error")
    assert (messages["type"], messages["error"]["type"]) == ("error", "authentication_error")
    assert counted["error"]["type"] == "authentication_error"
    assert responses["error"]["code"] == "invalid_api_key"


async def test_health_and_readiness_need_no_key_and_name_no_pool(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served:
        observer = await served.key(scopes=("observe",))
        assert (await served.ask("/health"))[0] == 200
        for token in (None, STRANGER):
            assert (await served.ask("/ready", token))[2] == {"ready": True}
        assert "m/pool" in (await served.ask("/ready", observer.token))[2]["pools"]


async def test_a_model_outside_a_keys_scope_does_not_exist(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served:
        issued = await served.key(models=("m",), scopes=("infer", "explain"))
        _, _, listed = await served.ask("/v1/models", issued.token)
        assert [model["id"] for model in listed["data"]] == ["m"]
        unknown = [(path, {**BODIES[path], "model": "nothing"}) for path in BODIES]
        hidden = [(path, {**BODIES[path], "model": "secret/model"}) for path in BODIES]
        for (path, one), (_, other) in zip(unknown, hidden, strict=True):
            status, _, body = await served.ask(path, issued.token, one)
            again, _, same = await served.ask(path, issued.token, other)
            assert status == again
            assert status in (400, 404), path
            message = body["error"]["message"]
            assert same["error"]["message"] == message.replace("nothing", "secret/model")
            assert "secret" not in message
        for name in ("secret/model", "nothing"):
            status, _, body = await served.ask(f"/v1/models/{name}", issued.token)
            assert (status, body["error"]["code"]) == (404, "model_not_found")
        assert (await served.ask("/v1/models/alias", issued.token))[0] == 200
        assert (await served.ask("/v1/chat/completions", issued.token, {**CHAT, "model": "alias:nospec"}))[0] == 200


@pytest.mark.parametrize(
    ("path", "scope"),
    [("/v1/chat/completions", "explain"), ("/v1/messages", "observe"), ("/v1/route/explain", "infer")],
)
async def test_a_key_without_the_scope_is_told_which_one(tmp_path: Path, path: str, scope: str) -> None:
    async with gateway(tmp_path) as served:
        issued = await served.key(scopes=(scope,))
        status, _, body = await served.ask(path, issued.token, BODIES[path])
        needed = "explain" if path == "/v1/route/explain" else "infer"
        assert status == 403
        assert needed in body["error"]["message"]


async def test_a_revoked_key_and_a_rotated_one_change_what_is_served(tmp_path: Path) -> None:
    async with gateway(tmp_path) as served:
        old = await served.key()
        new = served.store.rotate(old.key.id, grace_s=3600)
        await served.merge()
        assert [(await served.ask("/v1/models", each.token))[0] for each in (old, new)] == [200, 200]
        served.store.revoke(old.key.id)
        await served.merge()
        assert [(await served.ask("/v1/models", each.token))[0] for each in (old, new)] == [401, 401]


async def test_a_refused_request_is_no_tenants_unless_its_key_is_known(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.INFO, "ray.serve.specgate.requests")
    soon = datetime.now(UTC) + timedelta(milliseconds=1)
    async with gateway(tmp_path, telemetry={"log_requests": 1.0}) as served:
        good, revoked, narrow = await served.key(), await served.key(), await served.key(scopes=("observe",))
        expired = await served.key(expires=soon)
        served.store.revoke(revoked.key.id)
        await served.merge()
        tokens = (good.token, revoked.token, expired.token, narrow.token, STRANGER, None)
        asked = [(await served.ask("/v1/chat/completions", token, CHAT))[0] for token in tokens]
        lines = [vars(each) for each in caplog.records if "request_id" in vars(each)]
        paths = [f"/admin/v1/request?request_id={line['request_id']}" for line in lines]
        shown = [(await operators(served.replica, path))["data"] for path in paths]
    assert asked == [200, 401, 401, 403, 401, 401]
    known = [(each.key.id, "red") for each in (good, revoked, expired, narrow)]
    for told in (lines, shown):  # by the log and the dashboard
        assert [(each["key"], each["tenant"]) for each in told] == [*known, ("", ""), ("", "")]


async def operators(replica: GatewayReplica, path: str) -> Any:
    """Asks a route that the admin API asks."""
    transport = httpx.ASGITransport(app=replica.operators_app())
    async with httpx.AsyncClient(transport=transport, base_url="http://replica") as client:
        return (await client.get(path)).json()


async def test_a_bad_file_keeps_the_keys_and_says_so(tmp_path: Path, caplog: pytest.LogCaptureFixture) -> None:
    path = tmp_path / "keys.yaml"
    path.write_text("tenants: {red: {weight: 2}}", encoding="utf-8")
    async with gateway(tmp_path / "state", file=str(path)) as served:
        access = served.replica.access
        path.write_text(f"tenants: {STRANGER}", encoding="utf-8")
        with caplog.at_level(logging.ERROR):
            await served.merge()
        assert access.ring.tenant("red").weight == 2
        assert "kept the old one" in caplog.text
        assert STRANGER not in caplog.text
        path.unlink()
        await served.merge()
        assert access.ring.tenant("red").weight == 2
        path.write_text("tenants: {red: {weight: 7}}", encoding="utf-8")
        await served.merge()
        assert access.ring.tenant("red").weight == 7


def stored_in(folder: Path) -> list[str]:
    return [path.read_bytes().decode("latin-1") for path in folder.iterdir()]


async def raw(url: str, data: bytes) -> tuple[asyncio.StreamReader, asyncio.StreamWriter]:
    host, _, port = url.removeprefix("http://").partition(":")
    reader, writer = await asyncio.open_connection(host, int(port))
    writer.write(data)
    return reader, writer


@pytest.mark.parametrize("path", BODIES)
async def test_a_refused_body_is_neither_asked_for_nor_read(tmp_path: Path, path: str) -> None:
    head = f"POST {path} HTTP/1.1\r\nhost: x\r\ncontent-type: application/json\r\ncontent-length: 900000\r\n"
    async with gateway(tmp_path) as served:
        issued = await served.key(scopes=("infer", "explain"))
        reader, writer = await raw(served.url, f"{head}expect: 100-continue\r\n\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()
        reader, writer = await raw(served.url, f"{head}\r\n".encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 401")
        writer.close()
        expected = f"{head}authorization: Bearer {issued.token}\r\nexpect: 100-continue\r\n\r\n"
        reader, writer = await raw(served.url, expected.encode())
        assert (await reader.readline()).startswith(b"HTTP/1.1 100")
        writer.close()


async def test_after_twenty_refused_keys_a_connection_is_closed(tmp_path: Path) -> None:
    request = f"GET /v1/models HTTP/1.1\r\nhost: x\r\nx-api-key: {STRANGER}\r\n\r\n".encode()
    async with gateway(tmp_path) as served:
        reader, writer = await raw(served.url, request * 30)
        answers = await reader.read()
        writer.close()
    assert answers.count(b"HTTP/1.1 401") == 20
    assert answers.count(b"connection: close") == 1


async def test_a_key_reaches_no_engine_log_span_metric_or_error(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    spans = InMemorySpanExporter()
    monkeypatch.setattr(ingress, "Telemetry", lambda config: Telemetry({}, spans, config))
    engine = answering()
    seen: list[str] = []
    async with gateway(tmp_path, engine) as served:
        issued = await served.key(scopes=("infer", "explain", "observe"), models=("m",))
        rotated = served.store.rotate(issued.key.id)
        await served.merge()
        canaries = [each.token.split("_")[2] for each in (issued, rotated)] + [STRANGER.split("_")[2]]
        for token in (issued.token, rotated.token, STRANGER):
            for path, body in BODIES.items():
                for how in ({"authorization": f"Bearer {token}"}, {"x-api-key": token}):
                    for sent in (body, {**body, "model": "nothing"}, {**body, "stream": True}):
                        _, headers, answer = await served.ask(path, None, sent, how)
                        seen += [json.dumps(answer), json.dumps(headers)]
            for path in ("/v1/models", "/ready", "/health"):
                seen.append(json.dumps((await served.ask(path, token))[1:]))
        principal = served.replica.access.authenticate({"x-api-key": issued.token})
        seen += [repr(principal), repr(vars(served.replica)), repr(issued), str(issued), repr(served.store.keys())]
        _, _, body = await served.ask("/v1/chat/completions", issued.token, CHAT)
        seen.append(repr(vars(served.replica.access.ring)))
        served.replica.telemetry.shutdown()
    seen += [span.to_json() for span in spans.get_finished_spans()]
    seen += [caplog.text, repr(engine.__dict__)]
    seen += [served.replica.telemetry.metrics.exposition().decode(), *stored_in(tmp_path)]
    assert body["choices"]
    assert len(spans.get_finished_spans()) > 0
    text = "\n".join(seen)
    assert issued.key.id in text  # ids may be seen: the search itself works
    assert [canary for canary in canaries if canary in text] == []


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/v1/messages"])
async def test_the_slow_uploads_of_one_tenant_leave_room_for_the_others_bodies(tmp_path: Path, path: str) -> None:
    """Whoever had a key could hold all bytes that a replica keeps of bodies, and everybody else got a 429."""
    most = 8 * 2**20
    async with gateway(tmp_path, limits={"max_buffered_bytes": most}) as served:
        red, blue = await served.key(), await served.key(tenant="blue")
        address = urlsplit(served.url)
        head = (
            f"POST {path} HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
            f"authorization: Bearer {red.token}\r\ncontent-length: {2**20}\r\n\r\n"
        ).encode()
        uploads = []
        for _ in range(16):
            reader, writer = await asyncio.open_connection(address.hostname, address.port)
            uploads.append((reader, writer))
            writer.write(head + b"x" * (2**20 - 1))
        refusals = [asyncio.create_task(reader.readline()) for reader, _ in uploads]
        allowance = served.replica.allowance
        # Each of them is refused, or all that was sent of it is held.
        await until(lambda: allowance.held_bytes == (2**20 - 1) * sum(not each.done() for each in refusals))
        assert {each.result() for each in refusals if each.done()} == {b"HTTP/1.1 429 Too Many Requests\r\n"}
        assert allowance.held_bytes > 0
        status, _, body = await served.ask(path, red.token, {**BODIES[path], "user": "x" * 2**18})
        assert (status, "'red'" in body["error"]["message"]) == (429, True)
        status, _, body = await served.ask(path, blue.token, {**BODIES[path], "user": "x" * 2**19})
        assert status == 200, body
        for _, writer in uploads:
            writer.close()
        await until(lambda: (allowance.held_bytes, allowance.owned_bytes) == (0, {}))
        await asyncio.gather(*refusals, return_exceptions=True)
