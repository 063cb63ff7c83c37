"""Engines of others over HTTP: they are asked what they are, watched while they serve, and never trusted unasked."""

import asyncio
import json
import re
import ssl
from collections import Counter
from collections.abc import AsyncIterator, Callable
from contextlib import AsyncExitStack, asynccontextmanager
from datetime import timedelta
from pathlib import Path
from typing import Any

import aiohttp
import pytest
from faults.settings import Authority, forwarding
from support.engines import RunningEngine, live
from support.stack import listening
from typer.testing import CliRunner

from serve.cli.main import app
from serve.config.compiled_policy import compile_for
from serve.config.gateway import GatewayConfig
from serve.gateway.engine_watch import PoolWatch, addresses_of
from serve.gateway.ingress import GatewayReplica
from serve.http1.asgi import AsgiApp
from serve.http1.client import fetch
from serve.routing.pool import Affinity, Endpoint
from serve.routing.remote_pool import RemotePool

CHAT = {"model": "m", "messages": [{"role": "user", "content": "hello"}]}
TOOLS = {"tools": [{"type": "function", "function": {"name": "f", "parameters": {"type": "object"}}}]}
OPTED_OUT = {**CHAT, "enable_speculative": False}
FACTS = {"engine": "vllm", "engine_version": "0.32.0", "method": "none"}


@asynccontextmanager
async def gateway(pools: dict[str, Any], **more: Any) -> AsyncIterator[str]:
    config = {
        "models": {"m": {"family": "qwen3", "grammar": "hermes", "pools": pools}},
        "quarantine": {"reference_share": 0}, **more,
    }  # fmt: skip
    replica = GatewayReplica(GatewayConfig.parse(config).model_dump(mode="json"), [])
    async with listening(replica.app(), replica.hot) as front:
        yield front.url


async def post(url: str, body: Any) -> tuple[int, dict[str, str]]:
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as answer:
        text = await answer.text()
        unusable = 503 if "No engine of m/standard can be used now" in text else 0
        return unusable or answer.status, {name.lower(): value for name, value in answer.headers.items()}


async def eventually(url: str, body: Any, holds: Callable[[int], bool]) -> int:
    """Asks until the status is one; returns it."""
    async with asyncio.timeout(60):
        while not holds(status := (await post(url, body))[0]):  # noqa: ASYNC110
            await asyncio.sleep(0.01)
    return status


@pytest.fixture(autouse=True)
def _often(monkeypatch: pytest.MonkeyPatch) -> None:
    for name in ("PERIOD_S", "AGAIN_S", "ASK_PERIOD_S"):
        monkeypatch.setattr(f"serve.discovery.identity.{name}", 0.02)


async def test_an_engine_that_comes_back_with_a_drafter_serves_nobody_who_wants_no_drafts() -> None:
    engine = RunningEngine()
    async with listening(engine) as behind, gateway({"standard": remote(behind.url)}) as url:
        status, headers = await post(url, OPTED_OUT)
        assert (status, headers["x-specgate-speculative"]) == (200, "off")
        engine.away = True
        await eventually(url, OPTED_OUT, lambda status: status == 503)
        engine.started, engine.drafts, engine.away = 2.0, True, False
        served = engine.served
        await eventually(url, OPTED_OUT, lambda status: status == 422)
        assert engine.served == served


async def test_a_restarted_engine_that_is_the_same_serves_again() -> None:
    engine = RunningEngine()
    async with listening(engine) as behind, gateway({"standard": remote(behind.url)}) as url:
        await eventually(url, OPTED_OUT, lambda status: status == 200)
        engine.away = True
        await eventually(url, OPTED_OUT, lambda status: status == 503)
        engine.started, engine.away = 2.0, False
        await eventually(url, OPTED_OUT, lambda status: status == 200)


async def test_an_engine_whose_metrics_alone_fail_serves_by_what_else_it_tells() -> None:
    engine = RunningEngine()
    async with listening(engine) as behind, gateway({"standard": remote(behind.url)}) as url:
        await eventually(url, OPTED_OUT, lambda status: status == 200)
        engine.tells_metrics = False
        await eventually(url, OPTED_OUT, lambda status: status == 422)  # that it does not draft is known no longer
        for _ in range(20):
            assert (await post(url, CHAT))[0] == 200
        engine.away = True
        await eventually(url, CHAT, lambda status: status == 503)
        engine.away, engine.tells_metrics = False, True
        await eventually(url, OPTED_OUT, lambda status: status == 200)


async def test_a_restarted_engine_has_nothing_of_the_conversations_that_it_had() -> None:
    engines = [RunningEngine(), RunningEngine()]
    prompt = Affinity(str, lambda: tuple(range(50)))
    async with listening(engines[0]) as first, listening(engines[1]) as second:
        pool = RemotePool([first, second], FACTS, routing="prefix")
        watch = PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None)
        await watch.look()
        async with pool.reserve(prompt) as home:
            pass
        other = next(each for each in (first, second) if each.url != home.url)
        async with pool.reserve(Affinity(str, lambda: tuple(range(40)), frozenset({home.url}))) as begins:
            assert begins.url == other.url
        await watch.look()
        async with pool.reserve(prompt) as again:
            assert again.url == home.url
        engines[[first.url, second.url].index(home.url)].started = 2.0
        await watch.look()
        async with pool.reserve(prompt) as after:
            assert after.url == other.url


@pytest.mark.parametrize(("kept_tokens", "is_there"), [(100_000, True), (10_000, False)])
async def test_a_prompt_is_looked_for_where_it_was_for_as_long_as_that_engine_keeps_it(
    kept_tokens: int, is_there: bool
) -> None:
    engines = [RunningEngine(), RunningEngine()]
    for engine in engines:
        engine.kept_tokens = kept_tokens
    prompt, many = (Affinity(str, lambda name=name: tuple((name, at) for at in range(50))) for name in "pm")
    async with listening(engines[0]) as first, listening(engines[1]) as second:
        pool = RemotePool([first, second], FACTS, routing="prefix")
        await PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None).look()
        async with pool.reserve(prompt) as home:
            pass
        other = ({first.url, second.url} - {home.url}).pop()
        elsewhere = Affinity(many.session, many.blocks, frozenset({other}))
        async with pool.reserve(elsewhere) as same:
            assert same.url == home.url
        part = Affinity(str, lambda: prompt.blocks()[:30], frozenset({home.url}))
        async with pool.reserve(part) as begins:
            assert begins.url == other
        async with pool.reserve(prompt) as again:
            assert again.url == (home.url if is_there else other)


async def test_a_pool_that_is_stated_not_to_draft_is_held_as_drafting_when_it_does() -> None:
    async with listening(RunningEngine(drafts=True)) as behind, gateway({"standard": remote(behind.url)}) as url:
        await eventually(url, OPTED_OUT, lambda status: status == 422)


async def test_of_another_engine_nothing_that_was_stated_is_kept() -> None:
    stated = {**FACTS, "method": "eagle3", "tool_parser": "hermes"}
    pool = {"kind": "remote", "url": "http://here", "facts": stated, "proven": ["tools_auto"]}
    config = GatewayConfig.parse({"models": {"m": {"family": "qwen3", "pools": {"p": pool}}}})
    engine = RunningEngine()
    async with listening(engine) as behind:
        remote_pool = RemotePool(behind, stated)
        learned: list[Any] = []
        watch = PoolWatch("m/p", remote_pool, stated, learned.append, lambda: None)
        await watch.look()
        assert not learned, "a drafter that is stated is believed"
        engine.started, engine.drafts = 2.0, True
        await watch.look()
    (facts,) = compile_for(config, {("m", "p"): learned[-1]}).facts
    assert (facts.method, facts.tool_parser, facts.proven) == ("unknown", None, frozenset())
    assert (facts.engine, facts.engine_version, facts.prefix_caching) == ("vllm", "0.32.0", True)
    (unchanged,) = compile_for(config, {("m", "p"): stated}).facts
    assert (unchanged.method, unchanged.proven) == ("eagle3", {"tools_auto"})


async def test_an_upgrade_that_an_engines_metrics_do_not_show_is_found_within_a_while() -> None:
    engine = RunningEngine()
    engine.started = None
    async with listening(engine) as behind:
        learned: list[Any] = []
        watch = PoolWatch("m/p", RemotePool(behind, FACTS), FACTS, learned.append, lambda: None)
        await watch.look()
        engine.version = "0.33.0"
        await asyncio.sleep(0.03)
        await watch.look()
    assert [facts["engine_version"] for facts in learned] == ["0.33.0"]


async def test_engines_of_one_pool_share_its_requests_and_one_that_is_another_gets_none() -> None:
    engines = [RunningEngine() for _ in range(3)]
    async with AsyncExitStack() as running:
        urls = [(await running.enter_async_context(listening(engine))).url for engine in engines]
        url = await running.enter_async_context(gateway({"standard": {**remote(""), "url": None, "urls": urls}}))
        assert Counter([(await post(url, OPTED_OUT))[0] for _ in range(9)]) == {200: 9}
        assert [engine.served for engine in engines] == [3, 3, 3]
        engines[0].started, engines[0].drafts = 2.0, True
        engines[1].away = True
        async with asyncio.timeout(60):
            while True:  # until a round of requests reaches the third one only
                before = [engine.served for engine in engines]
                statuses = {(await post(url, OPTED_OUT))[0] for _ in range(6)}
                assert statuses == {200}, "no request fails that another engine could serve"
                if [engine.served - was for engine, was in zip(engines, before, strict=True)] == [0, 0, 6]:
                    break


async def test_addresses_of_a_name_come_and_go_and_a_new_one_is_asked_first() -> None:
    engines = {"one": RunningEngine(), "two": RunningEngine(), "other": RunningEngine(drafts=True)}
    async with AsyncExitStack() as running:
        urls = {
            name: (await running.enter_async_context(listening(engine))).url for name, engine in engines.items()
        }  # fmt: skip
        found = [urls["one"]]

        async def look_up() -> list[str]:
            if not found:
                raise OSError("no address")
            return found

        async def used() -> set[str]:
            await watch.look()
            async with AsyncExitStack() as held:
                holds = [await held.enter_async_context(pool.reserve()) for _ in range(4)]
            return {endpoint.url for endpoint in holds}

        pool = RemotePool(Endpoint("http://engines.svc:8000", None), FACTS)
        watch = PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None, look_up)
        assert await used() == {urls["one"]}
        found[:] = [urls["one"], urls["two"], urls["other"]]
        assert await used() == {urls["one"], urls["two"]}
        found[:] = [urls["two"]]
        assert await used() == {urls["two"]}
        found.clear()
        assert await used() == {urls["two"]}, "what was known last"


async def test_an_engine_that_hangs_is_left_out_while_another_answers(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = hanging(monkeypatch)
    async with listening(RunningEngine()) as engine:
        pool = RemotePool([Endpoint(silent, None), engine], FACTS)
        watch = PoolWatch("m/p", pool, FACTS, lambda _: None, lambda: None)
        await watch.look()
        await watch.look()
        async with AsyncExitStack() as held:
            holds = [await held.enter_async_context(pool.reserve()) for _ in range(4)]
    assert {endpoint.url for endpoint in holds} == {engine.url}


async def test_an_engine_that_does_not_answer_is_told_of_once(caplog: pytest.LogCaptureFixture) -> None:
    engine = RunningEngine()
    engine.away = True
    async with listening(engine) as behind:
        watch = PoolWatch("m/p", RemotePool(behind, FACTS), FACTS, lambda _: None, lambda: None)
        for _ in range(3):
            await watch.look()
    assert [record.getMessage() for record in caplog.records] == [f"m/p at {behind.url}: /metrics answers HTTP 500"]


async def test_a_name_is_looked_up_with_its_port_and_path() -> None:
    assert await addresses_of("http://127.0.0.1:8000/base") == ["http://127.0.0.1:8000/base"]


async def test_a_session_stays_with_its_engine() -> None:
    engines = [RunningEngine() for _ in range(3)]
    async with AsyncExitStack() as running:
        urls = [(await running.enter_async_context(listening(engine))).url for engine in engines]
        pool = {**remote(""), "url": None, "urls": urls, "routing": "sticky"}
        url = await running.enter_async_context(gateway({"standard": pool}))
        for _ in range(5):
            await post(url, CHAT)
    assert sorted(engine.served for engine in engines) == [0, 0, 5]


def hanging(monkeypatch: pytest.MonkeyPatch) -> str:
    """Returns the URL of a server that accepts connections and never answers: nobody waits until that is sure."""
    silent = "http://silent:8000"

    async def answered(url: str, *how: Any) -> Any:
        if url == silent:
            raise TimeoutError
        return await fetch(url, *how)

    monkeypatch.setattr("serve.discovery.asking.fetch", answered)
    return silent


def remote(url: str) -> dict[str, Any]:
    return {"kind": "remote", "url": url, "facts": FACTS}


async def ask(*arguments: str) -> tuple[int, str]:
    """Returns exit code and output of `specgate front`, which serves nothing here."""
    result = await asyncio.to_thread(CliRunner().invoke, app, ["front", "--check", *arguments])
    return result.exit_code, re.sub(r"\s+", " ", result.output)


async def test_front_tells_what_engines_are_and_writes_what_serve_takes(tmp_path: Path) -> None:
    path = tmp_path / "specgate.yaml"
    async with listening(RunningEngine()) as standard, listening(RunningEngine(drafts=True)) as drafting:
        urls = (f"{standard.url}/v1", f"{drafting.url}/", standard.url)
        code, output = await ask(*urls, "--json", "--write", str(path))
        found = json.loads(output.partition(" wrote ")[0])
        assert code == 1, "the drafter's method is not known"
        assert [each["fact"] for each in found["unknown"]] == ["method"]
        stated, _ = await ask(*urls, "--fact", "speculative.method=eagle3")
        assert stated == 0
    pools = GatewayConfig.load(path).models["m"].pools
    assert {name: pool.addresses for name, pool in pools.items()} == {
        "standard": (standard.url,), "speculative": (drafting.url,)
    }  # fmt: skip
    assert [pool.facts["method"] for pool in pools.values()] == ["none", "unknown"]
    assert "certain; /metrics" in path.read_text()


async def test_front_asks_for_the_key_that_an_engine_wants(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("ENGINE_KEY", "s3cret")
    async with listening(RunningEngine(key="s3cret")) as behind:
        code, output = await ask(behind.url)
        assert code == 2
        assert "it needs a key (HTTP 401): --api-key-env NAME" in output
        code, output = await ask(behind.url, "--api-key-env", "ENGINE_KEY", "--json")
    assert (code, "s3cret" in output) == (0, False)
    assert json.loads(output)["config"]["models"]["m"]["pools"]["standard"]["api_key_env"] == "ENGINE_KEY"


async def test_front_takes_urls_names_and_what_no_engine_tells_from_the_files_that_people_have(tmp_path: Path) -> None:
    compose, litellm = tmp_path / "compose.yaml", tmp_path / "config.yaml"
    async with listening(RunningEngine(drafts=True)) as drafting, listening(RunningEngine()) as standard:
        port = drafting.url.rpartition(":")[2]
        command = "--model Qwen/Qwen3-32B --served-model-name m --spec-method eagle3 --spec-model a/b --spec-tokens 3"
        service = {"image": "vllm/vllm-openai:v0.32.0", "ports": [f"{port}:8000"], "command": command}
        compose.write_text(json.dumps({"services": {"engine": service}}))
        params = {"model": "hosted_vllm/m", "api_base": f"{standard.url}/v1", "timeout": 5}
        entry = {"model_name": "claude-*", "litellm_params": params}
        litellm.write_text(json.dumps({"model_list": [entry], "router_settings": {"num_retries": 3}}))
        code, output = await ask("--from", str(compose), "--from", str(litellm), "--json")
    found = json.loads(output)
    model = found["config"]["models"]["m"]
    assert code == 0
    assert model["aliases"] == ["claude-*"]
    assert {name: (pool["urls"], pool["facts"]["method"]) for name, pool in model["pools"].items()} == {
        "speculative": ([drafting.url], "eagle3"), "standard": ([standard.url], "none"),
    }  # fmt: skip
    assert [each for each in found["not_carried_over"] if "router_settings" in each or "timeout" in each]


async def test_front_completes_a_configuration_and_keeps_what_stands_there(tmp_path: Path) -> None:
    path, whole = tmp_path / "gateway.yaml", tmp_path / "whole.yaml"
    async with listening(RunningEngine()) as standard, listening(RunningEngine(drafts=True)) as drafting:
        pools = {
            "fast": {"kind": "remote", "url": drafting.url, "facts": {"method": "eagle3"}, "routing": "sticky"},
            "plain": {"kind": "remote", "url": standard.url},
        }
        config = {"models": {"our-name": {"family": "qwen3", "pools": pools}}, "limits": {"max_tools": 7}}
        path.write_text(json.dumps(config))
        code, output = await ask("--config", str(path), "--write", str(whole))
        assert code == 0, output
        loaded = GatewayConfig.load(whole)
        assert loaded.limits.max_tools == 7
        fast, plain = loaded.models["our-name"].pools.values()
        assert (fast.facts["method"], fast.routing, fast.served_name) == ("eagle3", "sticky", "m")
        assert (plain.facts["method"], plain.facts["engine_version"]) == ("none", "0.32.0")
        pools["fast"]["facts"] = {"method": "none", "engine_version": "0.32.0"}
        pools["plain"] = {**pools["plain"], "urls": [standard.url, drafting.url], "url": None}
        path.write_text(json.dumps(config))
        code, output = await ask("--config", str(path))
    assert code == 2
    assert f"our-name/fast: {drafting.url}: speculates is False (the configuration), and the engine says True" in output
    assert f"its engines are not alike: method is none at {standard.url}, unknown at {drafting.url}" in output


async def test_front_makes_a_whole_configuration_of_one_that_names_urls_only(tmp_path: Path) -> None:
    path, whole = tmp_path / "gateway.yaml", tmp_path / "whole.yaml"
    async with listening(RunningEngine(drafts=True)) as engine:
        path.write_text(json.dumps({"models": {"ours": {"pools": {"p": {"kind": "remote", "url": engine.url}}}}}))
        code, output = await ask("--config", str(path), "--write", str(whole))
    assert code == 1
    assert "as its method is not known: tools_auto" in output
    assert "not known: ours/p method; settle it with --fact" in output
    model = GatewayConfig.load(whole).models["ours"]
    assert (model.family, model.pools["p"].facts["engine_version"]) == ("qwen3", "0.32.0")


async def test_front_wants_engines_and_in_one_way_only(tmp_path: Path) -> None:
    path = tmp_path / "gateway.yaml"
    path.write_text(json.dumps({"models": {"m": {"family": "qwen3", "pools": {"p": {"kind": "sim"}}}}}))
    assert "say which engines" in (await ask())[1]
    assert f"{path} is a file: --from {path}" in (await ask(str(path)))[1]
    assert "there is no folder" in (await ask("http://a", "--write", str(tmp_path / "none" / "x.yaml")))[1]
    assert "stand in it" in (await ask("http://a", "--config", str(path)))[1]
    assert "can't be read" in (await ask("--from", str(tmp_path / "none")))[1]
    result = await asyncio.to_thread(CliRunner().invoke, app, ["front", "--config", str(path)])
    assert "has engines of its own" in re.sub(r"\s+", " ", result.output)


def page() -> AsgiApp:
    async def answer(scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        await send({"type": "http.response.start", "status": 200, "headers": [(b"content-type", b"text/html")]})
        await send({"type": "http.response.body", "body": b"<html>Welcome</html>"})

    return answer


@pytest.mark.parametrize("url", ["ftp://a", "http://", "http://a:port", "http://a/v1/chat/completions"])
async def test_front_refuses_what_is_no_base_url(url: str) -> None:
    code, output = await ask(url)
    assert (code, "Traceback" in output) == (2, False)


async def test_front_says_what_is_wrong_with_what_is_no_engine(monkeypatch: pytest.MonkeyPatch) -> None:
    silent = hanging(monkeypatch)
    async with listening(page()) as html, listening(RunningEngine()) as engine:
        code, output = await ask(silent, html.url, "http://127.0.0.1:9", engine.url)
        none, all_wrong = await ask(silent, "http://127.0.0.1:9")
    assert (code, none) == (1, 2)
    assert f"left out: {silent}: it does not answer (no answer in time)" in output
    assert f"left out: {html.url}: /v1/models lists no model" in output
    assert "left out: http://127.0.0.1:9: nothing listens there; is the engine up" in output
    assert "no engine says what it serves" in all_wrong


@pytest.mark.parametrize(
    ("host", "ends_in", "says"),
    [
        ("localhost", timedelta(days=-1), "its certificate has expired"),
        ("127.0.0.1", timedelta(days=1), "its certificate is for other names"),
    ],
)
async def test_front_says_what_is_wrong_with_a_certificate(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch, host: str, ends_in: timedelta, says: str
) -> None:
    authority, context = Authority(tmp_path), ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
    authority.sign(context, ends_in)
    monkeypatch.setenv("SSL_CERT_FILE", str(authority.file))
    async with listening(RunningEngine()) as engine, forwarding(engine.url, context) as port:
        _, output = await ask(f"https://{host}:{port}")
    assert says in output
