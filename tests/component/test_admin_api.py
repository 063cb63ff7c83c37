"""The admin API at the socket: who may use which route, what it tells of the whole cluster, and its audit log."""

import asyncio
import json
import socket
import ssl
import subprocess
from collections.abc import Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

import aiohttp
import fastapi
import pytest
from fastapi.responses import PlainTextResponse
from prometheus_client.parser import text_string_to_metric_families
from support.admin_api import admin_before, serving
from support.disks import full_disk
from support.stack import listening
from typer.testing import CliRunner
from yarl import URL

from serve.access.key_store import KeyStore
from serve.access.principal import Principal, Tenant, everybody
from serve.admin.app import AdminRoutes
from serve.admin.audit import AuditLog, verify
from serve.admin.authorization import ADMIN_PORT, DATA_PORT, Rules, rules_of
from serve.admin.deployment import AdminApi
from serve.admin.replicas import GatewayReplicas, Watch, metrics_of
from serve.cli import app as specgate
from serve.config.access import RIGHTS
from serve.errors import ConfigError, InvalidApiKeyError
from serve.gateway.announcer import listed_routes
from serve.gateway.ingress import GatewayReplica
from serve.http1.listener import AllowedRoutes, Listener
from serve.http1.server import protocol_factory
from serve.routing.pool import Endpoint

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
ORDER = {"action": "quarantine", "model": "m", "pool": "p", "request_class": "tools_auto", "reason": "incident 17"}
BODIES = {"/v1/route/explain": CHAT, "/admin/v1/quarantine": ORDER}
ROUTES = [(method, path) for path, methods in ADMIN_PORT.items() for method in methods]
# Those of keys and tenants are in test_keys_api.py, that of reruns in test_rerun_content.py; usage needs a ledger, and
# a request must have been there.
ELSEWHERE = ("/admin/v1/keys", "/admin/v1/tenants", "/admin/v1/usage", "/admin/v1/rerun", "/admin/v1/request")
GUARDED = [
    (method, path)
    for method, path in ROUTES
    if ADMIN_PORT[path][method].scope not in ("", "*") and not path.startswith(ELSEWHERE)
]


def config(url: str = "http://127.0.0.1:9") -> dict[str, Any]:
    pool = {"kind": "remote", "url": url, "facts": {"engine": "sim", "method": "none"}}
    return {"models": {"m": {"family": "sim", "grammar": "hermes", "pools": {"p": pool}}}}


def keys(headers: Mapping[str, str]) -> Principal:
    """Keys that are named after their scopes."""
    scopes = frozenset(headers.get("authorization", "").removeprefix("Bearer ").split("+"))
    if not scopes <= RIGHTS:
        raise InvalidApiKeyError("This API key is not valid here.")
    return Principal("key-" + "-".join(sorted(scopes)), Tenant("team"), scopes)


async def ask(method: str, url: str, key: str = "", body: Any = None, **how: Any) -> tuple[int, Any, bytes]:
    headers = {**({"authorization": f"Bearer {key}"} if key else {}), **how.pop("headers", {})}
    async with (
        aiohttp.ClientSession() as session,
        session.request(method, URL(url, encoded=True), json=body, headers=headers, **how) as response,
    ):
        return response.status, response.headers, await response.read()


def routes_of(app: Any) -> Iterator[tuple[str, str]]:
    while not hasattr(app, "routes"):
        app = app._app
    for route in app.routes:
        for method in route.methods:
            yield method, route.path


def api(keys: KeyStore | None = None) -> AdminRoutes:
    replicas = GatewayReplicas()
    return AdminRoutes(replicas, Watch(replicas), AuditLog(None), everybody, 2**20, keys)


def both_apps(folder: Path) -> list[tuple[Any, Rules]]:
    with closing(KeyStore(folder)) as keys:
        return [(GatewayReplica(config(), []).app(), DATA_PORT), (api(keys).app(), ADMIN_PORT)]


def test_every_route_of_both_ports_has_a_line_in_the_table(tmp_path: Path) -> None:
    for app, rules in both_apps(tmp_path):
        found = set(routes_of(app))
        assert len(found) > 8
        missing = [(method, path) for method, path in found if method not in (rules_of(rules, path) or {})]
        assert missing == []


def test_every_line_of_the_tables_is_a_route(tmp_path: Path) -> None:
    for app, rules in both_apps(tmp_path):
        found = {(method, path.partition("{")[0]) for method, path in routes_of(app)}
        lines = {(method, path.removesuffix("*")) for path, methods in rules.items() for method in methods}
        assert lines <= found


def test_only_pages_and_health_need_no_key() -> None:
    lines = [
        (path, rule) for table in (DATA_PORT, ADMIN_PORT) for path, rules in table.items() for rule in rules.values()
    ]
    assert {path for path, rule in lines if not rule.scope} == {"/", "/page/*", "/health", "/ready", "/version"}


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_a_route_opens_to_its_own_scope_alone(method: str, path: str, tmp_path: Path) -> None:
    needed = ADMIN_PORT[path][method].scope
    async with serving(config(), authenticate=keys, audit=tmp_path) as ports:
        url, body = ports.admin_api + path, BODIES.get(path) if method == "POST" else None
        assert (await ask(method, url, "", body))[0] == 401
        assert (await ask(method, url, "nonsense", body))[0] == 401
        status, _, reply = await ask(method, url, "+".join(sorted(RIGHTS - {needed})), body)
        assert (status, json.loads(reply)["error"]["code"]) == (403, "insufficient_scope")
        assert (await ask(method, url, needed, body))[0] == 200
    lines = lines_of(tmp_path)
    refused = [(line["object"], line["reason"]) for line in lines if line["action"] == "refused"]
    wanted = f"{method} {path}"
    assert refused == [(wanted, "invalid_api_key"), (wanted, "invalid_api_key"), (wanted, "insufficient_scope")]
    assert "nonsense" not in str(lines), "never a secret"


@pytest.mark.parametrize(
    "path",
    [
        "/admin/v1/%71uarantine", "/admin/v1%2fquarantine", "//admin/v1/quarantine", "/admin/v1/./quarantine",
        "/admin/v1/x/../quarantine", "/admin/v1/quarantine/", "/admin/v1/quarantine;x", "/page/../admin/v1/quarantine",
        "/page/%2e%2e/admin/v1/quarantine", "/admin/v1/snapshot", "/docs", "/openapi.json", "/page/vendored.json",
        "/page/../app.py", "/page/%2e%2e%2fapp.py", "/v1/chat/completions",
    ],
)  # fmt: skip
async def test_what_is_no_route_is_nobodys(path: str) -> None:
    async with serving(config(), authenticate=keys) as ports:
        assert (await ask("GET", ports.admin_api + path, allow_redirects=False))[0] == 404


async def test_the_host_header_decides_nothing() -> None:
    async with serving(config(), authenticate=keys) as ports:
        for host in ("localhost/health?", "x/page/app.js?", "[::1]"):
            status, _, _ = await ask("GET", f"{ports.admin_api}/admin/v1/policy", headers={"host": host})
            assert status in (400, 401)


@pytest.mark.parametrize("path", ["/", "/health", "/metrics", "/admin/v1/policy"])
async def test_without_keys_no_name_that_only_leads_here_reaches_the_admin_api(path: str) -> None:
    """To a browser, a page of that name is of the same site."""
    async with serving(config(), names=("door.example", "127.0.0.1")) as ports:
        names = ("evil.example", "evil.example:8001", "localhost.evil.example", "127.0.0.1.evil.example", "[", "[x]")
        for host in names:
            headers = {"host": host, "origin": f"http://{host}"}
            status, _, reply = await ask("GET", ports.admin_api + path, headers=headers)
            assert (status, json.loads(reply)["error"]["code"]) == (403, "cross_site")
        for host in ("door.example", "DOOR.example:8001", "localhost:9", "127.0.0.1", "10.1.2.3:8001", "[::1]:8001"):
            assert (await ask("GET", ports.admin_api + path, headers={"host": host}))[0] == 200


@pytest.mark.parametrize(("method", "path"), GUARDED)
async def test_no_page_of_another_site_reaches_the_admin_api(method: str, path: str, tmp_path: Path) -> None:
    async with serving(config(), audit=tmp_path) as ports:
        body = BODIES.get(path) if method == "POST" else None
        for origin in ("https://app.example.com", "null", "http://[", ports.data):
            status, _, reply = await ask(method, ports.admin_api + path, "", body, headers={"origin": origin})
            assert (status, json.loads(reply)["error"]["code"]) == (403, "cross_site")
        assert (await ask(method, ports.admin_api + path, "", body, headers={"origin": ports.admin_api}))[0] == 200
    refused = [(line["object"], line["reason"]) for line in lines_of(tmp_path) if line["action"] == "refused"]
    assert refused == [(f"{method} {path}", "cross_site")] * 4


@pytest.mark.parametrize(
    "framing", [b"content-length: 99999999\r\n\r\n", b"transfer-encoding: chunked\r\n\r\nFFFFFF\r\n"]
)
async def test_an_order_larger_than_any_order_is_413_before_all_of_it_has_come(framing: bytes) -> None:
    async with serving(config()) as ports:
        parts = URL(ports.admin_api)
        reader, writer = await asyncio.open_connection(parts.host, parts.port)
        head = b"POST /admin/v1/quarantine HTTP/1.1\r\nhost: a\r\ncontent-type: application/json\r\n"
        writer.write(head + framing + b"x" * 300_000)
        answer = await asyncio.wait_for(reader.read(), 20)
        writer.close()
    assert answer.startswith(b"HTTP/1.1 413 ")


async def test_every_response_tells_browsers_to_load_nothing_else() -> None:
    async with serving(config(), authenticate=keys) as ports:
        for path in ("/", "/page/app.js", "/admin/v1/board", "/nothing"):
            _, headers, _ = await ask("GET", ports.admin_api + path)
            policy = headers["content-security-policy"]
            assert "default-src 'none'" in policy
            assert "unsafe" not in policy
            assert headers["x-content-type-options"] == "nosniff"


async def test_an_order_is_in_the_audit_log_with_what_it_changed(tmp_path: Path) -> None:
    async with serving(config(), authenticate=keys, audit=tmp_path) as ports:
        url = f"{ports.admin_api}/admin/v1/quarantine"
        await ask("POST", url, "operate+observe", ORDER, headers={"x-request-id": "r-1"})
        await ask("POST", url, "operate+observe", {**ORDER, "action": "lift", "reason": "mended"})
        await ask("POST", url, "operate+observe", {**ORDER, "pool": "nope"})
        lines = json.loads((await ask("GET", f"{ports.admin_api}/admin/v1/audit", "observe"))[2])["data"]
    lifted, ordered = lines
    assert (ordered["key"], ordered["tenant"]) == ("key-observe-operate", "team")
    assert (ordered["action"], lifted["action"]) == ("quarantine.quarantine", "quarantine.lift")
    assert (ordered["object"], ordered["reason"], ordered["request_id"]) == ("m/p tools_auto", "incident 17", "r-1")
    assert (ordered["before"], ordered["after"][0]["status"]) == ([], "quarantined")
    assert (lifted["before"][0]["status"], lifted["after"][0]["status"]) == ("quarantined", "open")
    assert verify(tmp_path).faults == ()
    result = await asyncio.to_thread(CliRunner().invoke, specgate, ["audit", "verify", str(tmp_path), "--json"])
    assert (result.exit_code, json.loads(result.output)["lines"]) == (0, 2)


@pytest.mark.parametrize(
    ("method", "path", "body", "status"),
    [
        ("POST", "/admin/v1/quarantine", b'{"reason":"\\ud800","action":"quarantine"}', 400),
        ("POST", "/admin/v1/quarantine", b'{"\\ud800":1}', 400),
        ("POST", "/admin/v1/quarantine", b"\xff", 400),
        ("POST", "/admin/v1/quarantine", b"[" * 50_000, 400),
        ("GET", "/admin/v1/audit?limit=x", b"", 400),
        ("GET", "/admin/v1/history/more", b"", 404),
        ("DELETE", "/admin/v1/keys/a/b", b"", 404),
    ],
)
async def test_whatever_is_sent_the_answer_is_an_error_of_our_shape(
    method: str, path: str, body: bytes, status: int, tmp_path: Path
) -> None:
    async with (
        serving(config(), authenticate=keys, keys=KeyStore(tmp_path)) as ports,
        aiohttp.ClientSession() as session,
    ):
        headers = {"authorization": "Bearer observe+operate+keys", "content-type": "application/json"}
        async with session.request(method, ports.admin_api + path, data=body, headers=headers) as response:
            assert (response.status, response.content_type) == (status, "application/json")
            assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_half_a_surrogate_pair_in_an_order_is_written_down_as_what_no_text_holds(tmp_path: Path) -> None:
    async with serving(config(), authenticate=keys, audit=tmp_path) as ports:
        order = {**ORDER, "reason": "\ud800 incident"}
        assert (await ask("POST", f"{ports.admin_api}/admin/v1/quarantine", "operate", order))[0] == 200
    assert json.loads((tmp_path / "audit-000001.jsonl").read_text())["reason"] == "\ufffd incident"


async def test_an_error_of_ours_says_so_and_not_what_it_is(tmp_path: Path) -> None:
    store = KeyStore(tmp_path)
    async with serving(config(), authenticate=keys, keys=store) as ports:
        store.tenants = lambda: 1 / 0  # type: ignore[method-assign,assignment,return-value]
        status, headers, body = await ask("GET", f"{ports.admin_api}/admin/v1/tenants", "keys")
    error = json.loads(body)["error"]
    assert (status, error["code"], headers["x-content-type-options"]) == (500, "internal_error", "nosniff")
    assert "division" not in error["message"]


async def test_an_order_that_cannot_be_written_down_is_not_carried_out(tmp_path: Path) -> None:
    async with serving(config(), authenticate=keys, audit=tmp_path) as ports:
        url = f"{ports.admin_api}/admin/v1/quarantine"
        path = tmp_path / "audit-000001.jsonl"
        with full_disk(after=path):
            status, _, reply = await ask("POST", url, "operate", ORDER)
        assert (status, json.loads(reply)["error"]["code"]) == (507, "storage_failed")
        assert json.loads((await ask("GET", url, "observe"))[2])["data"] == []
        assert (await ask("POST", url, "operate", ORDER, headers={"x-specgate-preview": "true"}))[0] == 200
        assert [cell["status"] for cell in json.loads((await ask("GET", url, "observe"))[2])["data"]] == ["quarantined"]


async def test_the_timeline_says_whose_order_it_was_whatever_the_order_says() -> None:
    async with serving(config(), authenticate=keys) as ports:
        await ask("POST", f"{ports.admin_api}/admin/v1/quarantine", "operate", {**ORDER, "operator": "somebody-else"})
        async with asyncio.timeout(20):
            while not (changes := (await board_of(ports.admin_api))["changes"]):  # noqa: ASYNC110 - it is polled
                await asyncio.sleep(0.1)
    (change,) = changes
    assert (change["operator"], change["by"], change["status"]) == ("key-operate", "operator", "quarantined")
    assert change["why"] == "incident 17"


async def board_of(admin_api: str) -> dict[str, Any]:
    board: dict[str, Any] = json.loads((await ask("GET", f"{admin_api}/admin/v1/board", "observe"))[2])
    return board


async def test_the_command_line_sends_the_key_of_the_environment(monkeypatch: pytest.MonkeyPatch) -> None:
    async with serving(config(), authenticate=keys) as ports:
        command = ["quarantine", "list", "--url", ports.admin_api]
        without = await asyncio.to_thread(CliRunner().invoke, specgate, command)
        monkeypatch.setenv("SPECGATE_KEY", "another")
        refused = await asyncio.to_thread(CliRunner().invoke, specgate, command)
        monkeypatch.setenv("SPECGATE_KEY", "observe")
        served = await asyncio.to_thread(CliRunner().invoke, specgate, command)
        listed = await asyncio.to_thread(CliRunner().invoke, specgate, ["audit", "list", "--url", ports.admin_api])
    assert (without.exit_code, "set SPECGATE_KEY" in without.output) == (2, True)
    assert (refused.exit_code, "not valid here" in refused.output) == (2, True)
    assert (served.exit_code, "no counts yet" in served.output) == (0, True)
    assert "invalid_api_key" in listed.output


async def test_metrics_are_those_of_all_gateway_replicas() -> None:
    apps = [GatewayReplica(config(), []).operators_app() for _ in range(2)]
    async with admin_before(*apps) as ports:
        text = (await ask("GET", f"{ports.admin_api}/metrics"))[2].decode()
    families = [each for each in text_string_to_metric_families(text) if each.name != "specgate_audit_log_failing"]
    assert {sample.labels["replica"] for family in families for sample in family.samples} == {"replica-1", "replica-2"}
    assert len({family.name for family in families}) == len(families)


async def test_metrics_of_engines_in_the_cluster_are_asked_for_with_their_key() -> None:
    engine = fastapi.FastAPI()

    @engine.get("/metrics")
    def metrics(request: fastapi.Request) -> PlainTextResponse:
        key = request.headers["authorization"]
        return PlainTextResponse(f'# TYPE vllm:running gauge\nvllm:running{{key="{key}"}} 3\n')

    async with listening(engine) as endpoint:
        pool = {"model": "m", "pool": "p", "may_sleep": False, "slots": 1, "held": 0, "waiting": 0}
        engines = {"engines": [{"url": endpoint.url, "key": "k"}]}
        remote = {"engines": [{"url": endpoint.url, "key": "not-yours"}]}
        pools = [{**pool, "kind": "vllm", **engines}, {**pool, "pool": "far", "kind": "remote", **remote}]
        async with admin_before(seeing(pools)) as ports:
            text = (await ask("GET", f"{ports.admin_api}/metrics"))[2].decode()
    replica = endpoint.url.partition("://")[2]
    assert f'vllm:running{{replica="{replica}",model="m",pool="p",key="Bearer k"}} 3\n' in text
    assert "not-yours" not in text


async def test_metrics_that_are_longer_than_any_engines_are_none() -> None:
    engine = fastapi.FastAPI()
    engine.add_api_route("/metrics", lambda: PlainTextResponse("up 1\n" * 1000))
    async with listening(engine) as endpoint:
        assert await metrics_of(endpoint, 4999) == ""
        assert await metrics_of(endpoint, 5000) == "up 1\n" * 1000


async def test_the_board_is_there_once_and_304_after_that() -> None:
    async with serving(config()) as ports:
        url = f"{ports.admin_api}/admin/v1/board"
        status, headers, body = await ask("GET", url)
        again, _, nothing = await ask("GET", url, headers={"if-none-match": headers["etag"]})
    assert (status, again, nothing) == (200, 304, b"")
    board = json.loads(body)
    assert [(pool["pool"], pool["state"]) for pool in board["pools"]] == [("p", "down")]
    assert "key" not in board["pools"][0]


@pytest.mark.parametrize("form", ["{}", "W/{}", "*", '"other", W/{}', '{},"other"'])
@pytest.mark.parametrize("method", ["GET", "HEAD"])
async def test_what_the_caller_has_is_304_however_it_says_so(method: str, form: str) -> None:
    async with serving(config()) as ports:
        for path in ("/admin/v1/board", "/page/app.js"):
            etag = (await ask(method, f"{ports.admin_api}{path}"))[1]["etag"]
            found = await ask(method, f"{ports.admin_api}{path}", headers={"if-none-match": form.format(etag)})
            assert (found[0], found[2]) == (304, b"")
            for other in ("", "nonsense", '"other"', etag.strip('"'), "W/", ",,"):
                assert (await ask(method, f"{ports.admin_api}{path}", headers={"if-none-match": other}))[0] == 200


async def test_a_process_that_hangs_hides_neither_the_metrics_nor_the_board_of_the_others() -> None:
    hung = socket.create_server(("127.0.0.1", 0))  # takes connections, and nobody answers them
    with hung:
        async with serving(config()) as ports, asyncio.timeout(10):  # as long as Prometheus waits
            ports.replicas.announce("hung", Endpoint(f"http://127.0.0.1:{hung.getsockname()[1]}", "key"))
            text = (await ask("GET", f"{ports.admin_api}/metrics"))[2].decode()
        assert 'replica="replica-1"' in text
        async with serving(config()) as ports, asyncio.timeout(10):
            ports.replicas.announce("hung", Endpoint(f"http://127.0.0.1:{hung.getsockname()[1]}", "key"))
            board = json.loads((await ask("GET", f"{ports.admin_api}/admin/v1/board"))[2])
    assert {each["replica"]: each["answers"] for each in board["gateways"]} == {"replica-1": True, "hung": False}


async def test_it_goes_on_with_the_replicas_that_are_left_and_says_so_if_there_is_none() -> None:
    async with serving(config()) as ports:
        alive = ports.replicas.running()["replica-1"]
        ports.replicas.announce("a-dead-one", type(alive)("http://127.0.0.1:9", "key"))
        assert (await ask("GET", f"{ports.admin_api}/admin/v1/policy"))[0] == 200
        board = json.loads((await ask("GET", f"{ports.admin_api}/admin/v1/board"))[2])
        assert len(board["pools"]) == 1
    async with admin_before() as empty:
        status, headers, reply = await ask("GET", f"{empty.admin_api}/admin/v1/policy")
        assert (status, json.loads(reply)["error"]["code"]) == (503, "pool_unavailable")
        assert headers["retry-after"]
        assert json.loads((await ask("GET", f"{empty.admin_api}/admin/v1/board"))[2])["pools"] == []


async def test_it_explains_bodies_of_each_api_as_the_data_port_does() -> None:
    async with serving(config()) as ports:
        answers = [await ask("POST", f"{url}/v1/route/explain", "", CHAT) for url in (ports.data, ports.admin_api)]
        body = {**CHAT, "max_tokens": 9}
        status, headers, reply = await ask("POST", f"{ports.admin_api}/v1/route/explain?api=messages", "", body)
        several = await ask("POST", f"{ports.admin_api}/v1/route/explain", "", {**CHAT, "n": 2})
    assert "rerun_only" not in json.loads(reply)
    assert json.loads(several[2])["rerun_only"] == "several"
    assert answers[0][2] == answers[1][2]
    assert (status, json.loads(reply)["pool"]) == (200, "p")
    assert headers["x-specgate-evidence"].startswith("evidence=")


async def test_it_explains_to_a_key_what_its_models_allow() -> None:
    def narrow(headers: Mapping[str, str]) -> Principal:
        return Principal("k", Tenant("team"), RIGHTS, tuple(headers["x-api-key"].split(",")))

    async with serving(config(), authenticate=narrow) as ports:
        for models, expected in (("m", 200), ("other,m*", 200), ("*", 200), ("other,n*", 404)):
            headers = {"x-api-key": models, "x-specgate-models": "*"}
            status, _, reply = await ask("POST", f"{ports.admin_api}/v1/route/explain", "", CHAT, headers=headers)
            assert status == expected
            assert status == 200 or json.loads(reply)["error"]["code"] == "model_not_found"


async def test_a_replicas_operators_routes_need_the_replicas_own_key() -> None:
    app = GatewayReplica(config(), []).operators_app()
    async with listening(AllowedRoutes(app, "secret", listed_routes(app)), {}) as replica:
        assert (await ask("GET", f"{replica.url}/admin/v1/policy"))[0] == 401
        assert (await ask("GET", f"{replica.url}/admin/v1/policy", "secret"))[0] == 200
        assert (await ask("POST", f"{replica.url}/v1/chat/completions", "secret", CHAT))[0] == 404


async def certificate(folder: Path) -> tuple[str, str]:
    """Makes a certificate for localhost; returns its files."""
    await asyncio.to_thread(folder.mkdir, exist_ok=True)
    cert, key = str(folder / "cert.pem"), str(folder / "key.pem")
    command = ["openssl", "req", "-x509", "-newkey", "rsa:2048", "-nodes", "-days", "2", "-subj", "/CN=localhost"]
    names = ["-addext", "subjectAltName=DNS:localhost", "-keyout", key, "-out", cert]
    await asyncio.to_thread(subprocess.run, [*command, *names], check=True, capture_output=True)
    return cert, key


async def test_it_speaks_tls_with_a_certificate_of_its_own_and_takes_a_renewed_one(tmp_path: Path) -> None:
    cert, key = await certificate(tmp_path / "old")
    new_cert, new_key = await certificate(tmp_path / "new")
    listener = Listener("127.0.0.1")
    await listener.start(api().app(), protocol_factory({}), ssl_certfile=cert, ssl_keyfile=key)

    async def health(trusted: str) -> int:
        context = ssl.create_default_context(cafile=trusted)
        return (await ask("GET", f"https://localhost:{listener.port}/health", ssl=context))[0]

    try:
        assert await health(cert) == 200
        with pytest.raises(aiohttp.ClientError):
            await ask("GET", f"http://localhost:{listener.port}/health")
        with pytest.raises(ssl.SSLError):
            listener.renew(new_cert, key)
        assert await health(cert) == 200
        listener.renew(new_cert, new_key)
        assert await health(new_cert) == 200
    finally:
        await listener.stop()


@pytest.mark.parametrize("missing", ["cert.pem", "key.pem"])
async def test_a_certificate_that_cannot_be_used_is_told_by_name(tmp_path: Path, missing: str) -> None:
    cert, key = await certificate(tmp_path)
    (tmp_path / missing).unlink()
    with pytest.raises(ConfigError, match=missing):
        await AdminApi.started({**config(), "admin": {"tls_certfile": cert, "tls_keyfile": key}})


def lines_of(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for each in sorted(folder.glob("*.jsonl")) for line in each.read_text().splitlines()]


def seeing(pools: list[dict[str, Any]]) -> Any:
    app = fastapi.FastAPI()
    policy = {"digest": "d", "refused_update": None}
    nothing: dict[str, Any] = {"cells": [], "changes": [], "reruns": [], "tenants": [], "queue": {}, "samples": []}
    snapshot = {"policy": policy, "pools": pools, "rerun_content": False, **nothing}
    app.add_api_route("/admin/v1/snapshot", lambda: snapshot)
    return app


@pytest.mark.parametrize(
    ("path", "cure"),
    [
        ("/admin/v1/usage", "rate_limits.enabled"),
        ("/admin/v1/keys", "access.state_dir"),
        ("/admin/v1/keys/k", "access.state_dir"),
        ("/admin/v1/tenants", "access.state_dir"),
    ],
)
async def test_what_is_off_says_which_setting_switches_it_on(path: str, cure: str) -> None:
    async with serving(config()) as ports:
        status, _, body = await ask("DELETE" if path.endswith("/k") else "GET", ports.admin_api + path)
    assert status == 404
    assert cure in json.loads(body)["error"]["message"]


async def test_what_became_of_a_request_is_told_by_its_id() -> None:
    async with serving(config()) as ports:
        status, headers, _ = await ask("POST", f"{ports.data}/v1/chat/completions", body={**CHAT, "model": "nobody"})
        assert status == 404
        path = f"{ports.admin_api}/admin/v1/request?request_id="
        status, _, body = await ask("GET", path + headers["x-request-id"])
        assert status == 200
        told = json.loads(body)
        assert (told["status"], told["error"], told["model"]) == (404, "model_not_found", "nobody")
        status, headers, _ = await ask("POST", f"{ports.data}/v1/chat/completions", body=CHAT)
        told = json.loads((await ask("GET", path + headers["x-request-id"]))[2])
        assert (told["status"], told["error"], told["pool"], told["request_class"]) == (
            status, "pool_unavailable", "p", "plain",
        )  # fmt: skip
        assert told["faults"]
        assert (await ask("GET", path + "other"))[0] == 404
