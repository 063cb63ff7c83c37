"""The simulated engine over HTTP: vLLM's shapes, transport faults, cancellation; read with the openai client."""

import asyncio
import json
import socket
from collections.abc import AsyncIterator, Callable
from contextlib import asynccontextmanager
from typing import Any

import aiohttp
import openai
import pytest
import uvicorn

from lab.sim import SimSettings, build_sim_app

TOOLS = [
    {
        "type": "function",
        "function": {
            "name": "bash",
            "parameters": {"type": "object", "properties": {"command": {"type": "string"}}, "required": ["command"]},
        },
    }
]
BODY = {"model": "sim", "messages": [{"role": "user", "content": "列出文件"}], "tools": TOOLS}


async def until(holds: Callable[[], bool]) -> None:
    while not holds():  # noqa: ASYNC110  uvicorn has no event to wait for
        await asyncio.sleep(0.005)


@asynccontextmanager
async def engine(api_key: str | None = None, **options: Any) -> AsyncIterator[str]:
    listening = socket.create_server(("127.0.0.1", 0))
    app = build_sim_app(SimSettings(**options), api_key)
    server = uvicorn.Server(uvicorn.Config(app, log_level="critical", timeout_graceful_shutdown=1))
    running = asyncio.create_task(server.serve(sockets=[listening]))
    await until(lambda: server.started)
    try:
        yield f"http://127.0.0.1:{listening.getsockname()[1]}"
    finally:
        server.should_exit = True
        await running
        listening.close()


async def frames(url: str, **extra: Any) -> list[Any]:
    async with (
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", json={**BODY, "stream": True, **extra}) as response,
    ):
        assert response.status == 200
        text = (await response.read()).decode()
    parts = [part.removeprefix("data: ") for part in text.split("\n\n") if part]
    return [part if part == "[DONE]" else json.loads(part) for part in parts]


async def stats(url: str) -> dict[str, Any]:
    async with aiohttp.ClientSession() as session, session.get(f"{url}/sim/stats") as response:
        return dict(await response.json())


async def test_a_stream_has_the_shape_that_clients_rely_on() -> None:
    async with engine(num_speculative_tokens=3) as url:
        *chunks, done = await frames(url, stream_options={"include_usage": True})
    assert done == "[DONE]"
    assert {(chunk["id"], chunk["created"], chunk["model"], chunk["object"]) for chunk in chunks} == {
        (chunks[0]["id"], chunks[0]["created"], "sim", "chat.completion.chunk")
    }
    assert chunks[0]["choices"][0]["delta"]["role"] == "assistant"
    assert chunks[-1]["choices"] == []
    assert chunks[-1]["usage"]["total_tokens"] > 0
    assert chunks[-1]["metrics"]["speculative_decoding"]["num_draft_tokens"] > 0
    assert [chunk["choices"][0]["finish_reason"] for chunk in chunks[:-1]][-1] == "tool_calls"
    opened = set()
    for entry in (entry for chunk in chunks[:-1] for entry in chunk["choices"][0]["delta"].get("tool_calls", ())):
        if entry["index"] in opened:
            assert set(entry) == {"index", "function"}
            assert set(entry["function"]) == {"arguments"}
        else:
            opened.add(entry["index"])
            assert entry["type"] == "function"
            assert entry["function"]["name"] == "bash"


async def test_usage_comes_only_when_asked_for() -> None:
    async with engine() as url:
        *chunks, _ = await frames(url)
    assert all(chunk["choices"] and "usage" not in chunk for chunk in chunks)


@pytest.mark.parametrize("grammar", ["kimi_k2", "qwen3_coder", "hermes"])
async def test_the_openai_client_reads_streams_and_whole_answers_alike(grammar: str) -> None:
    async with (
        engine(grammar=grammar, num_speculative_tokens=3, thinking=True) as url,
        openai.AsyncOpenAI(base_url=f"{url}/v1", api_key="x") as client,
        client.chat.completions.stream(**BODY) as stream,
    ):
        whole = (await client.chat.completions.create(**BODY)).choices[0]
        streamed = (await stream.get_final_completion()).choices[0]
    assert [call.function.arguments for call in streamed.message.tool_calls] == [
        call.function.arguments for call in whole.message.tool_calls
    ]
    assert (streamed.message.content or None) == whole.message.content
    assert streamed.finish_reason == whole.finish_reason == "tool_calls"


async def test_several_choices_are_told_apart_by_index() -> None:
    async with engine() as url:
        *chunks, _ = await frames(url, n=3)
    finished = [c["choices"][0]["index"] for c in chunks if c["choices"][0]["finish_reason"]]
    assert sorted(finished) == [0, 1, 2]


async def test_text_completions_models_metrics_and_health() -> None:
    async with engine() as url, aiohttp.ClientSession(url) as session:
        async with session.post("/v1/completions", json={"model": "sim", "prompt": "say"}) as response:
            assert (await response.json())["choices"][0]["text"]
        async with session.get("/v1/models") as response:
            assert (await response.json())["data"][0]["id"] == "sim"
        async with session.get("/metrics") as response:
            assert 'vllm:num_requests_running{model_name="sim"} 0' in await response.text()
        async with session.get("/health") as response:
            assert response.status == 200
        async with session.get("/nowhere") as response:
            assert response.status == 404


@pytest.mark.parametrize("drafts", [0, 3])
async def test_counters_of_drafts_tell_an_engine_with_a_drafter(drafts: int) -> None:
    async with (
        engine(num_speculative_tokens=drafts) as url,
        aiohttp.ClientSession(url) as session,
        session.get("/metrics") as response,
    ):
        assert ("vllm:spec_decode_num_drafts_total" in await response.text()) == bool(drafts)


async def test_health_says_503_until_the_engine_is_ready() -> None:
    async with (
        engine(ready_after_s=60) as url,
        aiohttp.ClientSession(url) as session,
        session.get("/health") as response,
    ):
        assert response.status == 503


@pytest.mark.parametrize(
    ("body", "status"),
    [
        (b"{", 400),
        (b"{}", 400),
        (json.dumps({**BODY, "model": "other"}).encode(), 404),
        (json.dumps({**BODY, "tool_choice": {"type": "function", "function": {"name": "rm"}}}).encode(), 400),
        (
            json.dumps(
                {**BODY, "messages": [{"role": "assistant", "tool_calls": [{"function": {"arguments": '{"a'}}]}]}
            ),
            400,
        ),
    ],
)
async def test_client_faults_get_openais_error_shape(body: bytes, status: int) -> None:
    async with (
        engine() as url,
        aiohttp.ClientSession() as session,
        session.post(f"{url}/v1/chat/completions", data=body) as response,
    ):
        assert response.status == status
        assert set((await response.json())["error"]) == {"message", "type", "param", "code"}


async def test_an_api_key_guards_the_v1_routes() -> None:
    async with engine("secret") as url, aiohttp.ClientSession(url) as session:
        async with session.get("/v1/models") as response:
            assert response.status == 401
        async with session.get("/v1/models", headers={"authorization": "Bearer secret"}) as response:
            assert response.status == 200


async def test_a_client_that_leaves_is_counted_as_cancelled_and_frees_its_slot() -> None:
    async with engine(step_ms=20, max_num_seqs=1) as url, aiohttp.ClientSession() as session:
        response = await session.post(f"{url}/v1/chat/completions", json={**BODY, "stream": True})
        await response.content.readany()
        assert (await stats(url))["running"] == 1
        response.close()
        await frames(url, max_tokens=3)
        counted = await stats(url)
    assert {key: counted[key] for key in ("started", "finished", "cancelled", "running", "waiting")} == {
        "started": 2, "finished": 1, "cancelled": 1, "running": 0, "waiting": 0,
    }  # fmt: skip


async def test_http_500_comes_before_any_byte_and_is_counted() -> None:
    async with engine(faults={"http_500": 1.0}) as url, aiohttp.ClientSession() as session:
        async with session.post(f"{url}/v1/chat/completions", json={**BODY, "stream": True}) as response:
            assert response.status == 500
            assert response.headers["x-sim-fault"] == "http_500"
        assert (await stats(url))["faults"] == {"http_500": 1}


async def test_an_error_in_mid_stream_follows_the_first_bytes() -> None:
    async with engine(faults={"error_mid_stream": 1.0}) as url:
        *chunks, error, done = await frames(url)
    assert chunks
    assert "error" in error
    assert done == "[DONE]"


@pytest.mark.parametrize("stream", [True, False])
async def test_a_disconnect_breaks_the_connection_in_mid_answer(stream: bool) -> None:
    async def read(url: str) -> None:
        async with (
            aiohttp.ClientSession() as session,
            session.post(f"{url}/v1/chat/completions", json={**BODY, "stream": stream}) as response,
        ):
            await response.read()

    async with engine(faults={"disconnect": 1.0}) as url:
        with pytest.raises(aiohttp.ClientPayloadError):
            await read(url)


@pytest.mark.parametrize("fault", ["stall", "slow_start"])
async def test_stalls_end_and_the_answer_is_whole(fault: str) -> None:
    async with engine(faults={fault: 1.0}, stall_s=0.02) as url:
        assert (await frames(url))[-1] == "[DONE]"
