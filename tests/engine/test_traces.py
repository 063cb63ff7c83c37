"""One request in a real collector's hands: the gateway's spans and, below its attempts, those of real vLLM engines."""

import asyncio
import os
import re
import time
from collections.abc import AsyncIterator, Iterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any, NamedTuple

import aiohttp
import pytest
from support.local import LocalGateway, local_gateway
from support.otlp import CollectedSpan, Collector, collecting
from support.session import session_config
from support.waterfall import waterfall

from lab.demo import WEATHER
from serve.launch.ports import free_port

pytestmark = pytest.mark.engine
MODEL = "traced-qwen"
CANARY = "Kanarienvogel"
TRACE = "0af7651916cd43dd8448eb211c80319c"
PICTURE = Path(__file__).parents[2] / "docs" / "images" / "trace.svg"
ASKED: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": "What is the weather in Osaka?"}],
    "tools": [WEATHER],
    "temperature": 0,
    "max_tokens": 200,
}
LONG: dict[str, Any] = {
    "model": MODEL,
    "messages": [{"role": "user", "content": f"Tell me of the {CANARY}."}],
    "max_tokens": 150,
    "ignore_eos": True,
}
_PATIENCE_S = 120


class Traced(NamedTuple):
    """A gateway whose pools have one slot each, where it and its engines send spans, and Ray's folder for its logs."""

    url: str
    collector: Collector
    session: Path


def _model() -> dict[str, Any]:
    """The session's Qwen, whose speculative pool has a parser that fails if it is asked to."""
    model: dict[str, Any] = session_config()["models"]["tiny-qwen"]
    for pool in model["pools"].values():
        pool |= {"max_ongoing_requests": 1, "opt_out": False}  # who opts out takes the other pool's slot
    return {**model, "aliases": [], "guard": {**model["guard"], "resume": "off"}}  # the engines' prompts are the same


@pytest.fixture(scope="module")
def traced(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Traced]:
    with collecting() as collector:
        more = {
            "telemetry": {"traces_endpoint": collector.url, "log_requests": 1.0},
            "requests": {"pass_fields": ["vllm_xargs"]},
            "quarantine": {"reference_share": 0},
            "access": {"mode": "off"},
            "rate_limits": {"enabled": True},
        }
        folder = tmp_path_factory.mktemp("traced")
        with local_gateway(folder, MODEL, free_port(), settings=_model(), further=more) as gateway:
            gateway.until_ready()
            yield Traced(gateway.url, collector, _session_of(gateway))


def _session_of(gateway: LocalGateway) -> Path:
    """Ray's folder of a gateway, as its processes' command lines have it."""
    lines = (" ".join(process.cmdline()) for process in gateway.processes())
    return Path(next(match[1] for line in lines if (match := re.search(r"--session[-_]dir[= ](\S+)", line))))


async def ask(url: str, body: dict[str, Any], trace_id: str) -> dict[str, Any]:
    headers = {"traceparent": f"00-{trace_id}-b7ad6b7169203331-01"}
    async with (
        aiohttp.ClientSession(headers=headers, timeout=aiohttp.ClientTimeout(_PATIENCE_S)) as session,
        session.post(f"{url}/v1/chat/completions", json=body) as response,
    ):
        assert response.status == 200, await response.text()
        answer: dict[str, Any] = await response.json()
        return {**answer, "headers": {name.lower(): value for name, value in response.headers.items()}}


async def whole_trace(collector: Collector, trace_id: str, engine_spans: int) -> list[CollectedSpan]:
    """The spans of a trace, once so many of them are engines' and the gateway's root has come too."""
    deadline_s = time.monotonic() + _PATIENCE_S
    while True:
        spans = collector.trace(trace_id)
        names = [span.name for span in spans]
        if names.count("llm_request") >= engine_spans and "POST /v1/chat/completions" in names:
            return spans
        assert time.monotonic() < deadline_s, names
        await asyncio.sleep(0.2)


@asynccontextmanager
async def slot_held(url: str, *, speculative: bool) -> AsyncIterator[None]:
    """Holds the only slot of a pool by a long stream; who leaves it frees the slot."""
    body = {**ASKED, "enable_speculative": speculative, "stream": True, "max_tokens": 800, "ignore_eos": True}
    async with aiohttp.ClientSession() as session, session.post(f"{url}/v1/chat/completions", json=body) as response:
        assert response.headers["x-specgate-speculative"] == ("on" if speculative else "off")
        yield


async def broken_and_rerun(url: str) -> dict[str, Any]:
    return await ask(url, {**ASKED, "vllm_xargs": {"test_fault": 1}}, TRACE)


async def after_a_wait(url: str) -> dict[str, Any]:
    """Both pools are full when the request comes, the first one frees its slot first."""
    async with slot_held(url, speculative=False):
        async with slot_held(url, speculative=True):
            answer = asyncio.create_task(broken_and_rerun(url))
            await asyncio.sleep(0.4)
        await asyncio.sleep(0.02)
    return await answer


async def test_a_rerun_is_one_tree_from_the_client_to_both_engines(traced: Traced) -> None:
    drawn = bool(os.environ.get("SPECGATE_TRACE_PICTURE"))
    answer = await (after_a_wait if drawn else broken_and_rerun)(traced.url)
    assert answer["headers"]["x-specgate-rerun"] == "standard"
    spans = await whole_trace(traced.collector, TRACE, engine_spans=2)
    by_id = {span.span_id: span for span in spans}
    root = next(span for span in spans if span.name == "POST /v1/chat/completions")
    assert root.parent_id == "b7ad6b7169203331"
    engines = [span for span in spans if span.name == "llm_request"]
    attempts = [by_id[span.parent_id] for span in engines]
    assert [span.name for span in attempts] == [f"chat {MODEL}"] * 2
    assert [(span.attributes["specgate.pool"], span.failed) for span in attempts] == [
        ("speculative", True),
        ("standard", False),
    ]
    assert [span.resource["specgate.pool"] for span in engines] == ["speculative", "standard"]
    assert {span.service for span in engines} == {"vllm"}
    assert by_id[attempts[1].parent_id].name == "rerun"
    assert attempts[0].parent_id == by_id[attempts[1].parent_id].parent_id == root.span_id
    assert dict(attempts[0].events)["gen_ai.evaluation.result"]["specgate.outcome"] != "clean"
    for engine, attempt in zip(engines, attempts, strict=True):
        assert engine.attributes["gen_ai.usage.prompt_tokens"] == attempt.attributes["gen_ai.usage.input_tokens"]
    if drawn:
        PICTURE.write_text(waterfall(spans), encoding="utf-8")


async def test_no_word_of_a_request_is_in_a_span_or_a_log(traced: Traced) -> None:
    trace_id = "2cf7651916cd43dd8448eb211c80319c"
    await ask(traced.url, LONG, trace_id)
    assert [span for span in await whole_trace(traced.collector, trace_id, 1) if CANARY in repr(span)] == []
    logs = [path for path in (traced.session / "logs").rglob("*") if path.is_file()]
    assert [path for path in logs if CANARY in path.read_text(errors="replace")] == []
