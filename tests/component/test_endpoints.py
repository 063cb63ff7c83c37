"""A pool of Kubernetes endpoints has the pods that the API server lists as ready, as they come and go."""

import json
from collections.abc import AsyncIterator
from contextlib import AsyncExitStack, asynccontextmanager
from functools import partial
from pathlib import Path
from typing import Any
from urllib.parse import parse_qs

import pytest
from support.engines import RunningEngine, live
from support.stack import listening

from serve.config.gateway import GatewayConfig
from serve.config.pool import EndpointsConfig
from serve.discovery.endpoint_slices import ApiServer, endpoints_of
from serve.errors import ConfigError, PoolUnavailableError
from serve.gateway.engine_watch import PoolWatch
from serve.http1.client import Origin
from serve.routing.remote_pool import RemotePool

FACTS = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}
TOKEN = "token-of-the-pod"
ENGINES = EndpointsConfig(service="engines")


class ScriptedApiServer:
    """Lists slices in pages of one, to whoever has the token.

    Attributes:
        slices: What it lists.
        status: That of each answer.
        asked: The path and the label selector of each first page.
    """

    def __init__(self) -> None:
        self.slices: list[Any] = []
        self.status = 200
        self.asked: list[tuple[str, str]] = []

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        query = parse_qs(scope["query_string"].decode())
        page = int(query.get("continue", ["0"])[0])
        if not page:
            self.asked.append((scope["path"], query["labelSelector"][0]))
        allowed = dict(scope["headers"]).get(b"authorization") == f"Bearer {TOKEN}".encode()
        more = {"continue": str(page + 1)} if page + 1 < len(self.slices) else {}
        body = json.dumps({"kind": "EndpointSliceList", "metadata": more, "items": self.slices[page : page + 1]})
        await send({"type": "http.response.start", "status": self.status if allowed else 401, "headers": []})
        await send({"type": "http.response.body", "body": body.encode()})


def slice_of(*addresses: str, port: int = 8000, **more: Any) -> dict[str, Any]:
    return {
        "addressType": "IPv4", "metadata": {"name": "engines-x"}, "ports": [{"name": "http", "port": port}],
        "endpoints": [{"addresses": [address], "conditions": {"ready": True}} for address in addresses], **more,
    }  # fmt: skip


@asynccontextmanager
async def api_server(folder: Path) -> AsyncIterator[tuple[ScriptedApiServer, ApiServer]]:
    (folder / "token").write_text(f"{TOKEN}\n")
    (folder / "namespace").write_text("mine")
    scripted = ScriptedApiServer()
    async with listening(scripted) as endpoint:
        yield scripted, ApiServer(endpoint.url, folder)


async def test_ready_endpoints_are_listed_in_all_pages(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (scripted, api):
        ending = {"addresses": ["10.0.0.3"], "conditions": {"ready": False, "serving": True, "terminating": True}}
        published = {"addresses": ["10.0.0.5"], "conditions": {**ending["conditions"], "ready": True}}
        unsaid = {"addresses": ["10.0.0.4", "10.9.9.9"]}
        six = {**slice_of("fd00::1"), "addressType": "IPv6"}
        name = {**slice_of("engines.example"), "addressType": "FQDN"}
        scripted.slices = [
            slice_of("10.0.0.1"),
            slice_of(endpoints=[ending, published, unsaid]),
            six,
            name,
            slice_of("10.0.0.1"),
        ]
        found = await endpoints_of(ENGINES, api)
        assert found == ["http://10.0.0.1:8000", "http://10.0.0.4:8000", "http://[fd00::1]:8000"]
        await endpoints_of(EndpointsConfig(labels={"app": "vllm", "tier": "gpu"}, namespace="theirs"), api)
    place = "/apis/discovery.k8s.io/v1/namespaces/{}/endpointslices"
    assert scripted.asked == [
        (place.format("mine"), "kubernetes.io/service-name=engines"),
        (place.format("theirs"), "app=vllm,tier=gpu"),
    ]


async def test_of_several_ports_one_has_to_be_said(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (scripted, api):
        ports = [{"name": "http", "port": 8000}, {"name": "zmq", "port": 55555}]
        scripted.slices = [slice_of("10.0.0.1", ports=ports)]
        with pytest.raises(OSError, match="ports http, zmq: say which"):
            await endpoints_of(ENGINES, api)
        for port in ("http", 8000):
            assert await endpoints_of(EndpointsConfig(service="e", port=port), api) == ["http://10.0.0.1:8000"]


async def test_what_keeps_the_api_server_from_telling_is_said(tmp_path: Path) -> None:
    async with api_server(tmp_path) as (scripted, api):
        scripted.status = 403
        with pytest.raises(OSError, match="refuses to list EndpointSlices in mine"):
            await endpoints_of(ENGINES, api)
        scripted.status = 500
        with pytest.raises(OSError, match="HTTP 500"):
            await endpoints_of(ENGINES, api)
        (tmp_path / "token").unlink()
        with pytest.raises(OSError, match="automountServiceAccountToken"):
            await endpoints_of(ENGINES, api)
    with pytest.raises(OSError, match="no pod"):
        ApiServer.here({})
    assert ApiServer.here({"KUBERNETES_SERVICE_HOST": "10.96.0.1"}).url == "https://10.96.0.1:443"


async def test_pods_come_and_go_and_a_new_one_is_asked_first(tmp_path: Path) -> None:
    engines = [RunningEngine(), RunningEngine(), RunningEngine(drafts=True)]
    async with AsyncExitStack() as running:
        scripted, api = await running.enter_async_context(api_server(tmp_path))
        urls = [(await running.enter_async_context(listening(engine))).url for engine in engines]
        pool = RemotePool((), FACTS)
        watch = PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None, partial(endpoints_of, ENGINES, api))

        async def used() -> set[str]:
            await watch.look()
            async with AsyncExitStack() as held:
                return {(await held.enter_async_context(pool.reserve())).url for _ in range(4)}

        def list_pods(*places: int) -> None:
            scripted.slices = [slice_of("127.0.0.1", port=Origin.of(urls[place]).port) for place in places]

        with pytest.raises(PoolUnavailableError):
            await used()
        list_pods(0, 1, 2)
        assert await used() == {urls[0], urls[1]}, "not the one that drafts"
        list_pods(1)
        assert await used() == {urls[1]}
        scripted.status = 503
        assert await used() == {urls[1]}, "what was known last"
        scripted.status, scripted.slices = 200, []
        with pytest.raises(PoolUnavailableError):
            await used()


@pytest.mark.parametrize(
    "pool",
    [
        {"endpoints": {}}, {"endpoints": {"service": "a", "labels": {"b": "c"}}}, {"endpoints": {"service": "A_B"}},
        {"endpoints": {"service": "a"}, "url": "http://b"}, {"endpoints": {"service": "a"}, "kind": "sim"},
        {"endpoints": {"service": "a", "port": 0}},
    ],
)  # fmt: skip
def test_endpoints_that_are_none_are_refused(pool: dict[str, Any]) -> None:
    with pytest.raises(ConfigError, match=r"models\.m\.pools\.p"):
        GatewayConfig.parse({"models": {"m": {"family": "qwen3", "pools": {"p": {"kind": "remote", **pool}}}}})
