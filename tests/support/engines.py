"""Hand-written engines, in vLLM's wire format."""

import asyncio
import json
from collections.abc import Awaitable, Callable, Sequence
from typing import Any

DONE = b"data: [DONE]\n\n"
Handler = Callable[[Any, Any, bytes], Awaitable[None]]


class Engine:
    """An ASGI app around one handler, which records its requests.

    Attributes:
        requests: (headers, body) of every POST.
        cancelled: Number of requests whose client left before the response was complete.
    """

    def __init__(self, handler: "Callable[[Engine, Any, Any], Awaitable[None]]") -> None:
        self._handler = handler
        self.requests: list[tuple[dict[str, str], bytes]] = []
        self.cancelled = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        body = b""
        while True:
            message = await receive()
            body += message.get("body", b"")
            if not message.get("more_body"):
                break
        headers = {name.decode(): value.decode() for name, value in scope["headers"]}
        if scope["method"] == "POST":
            self.requests.append((headers, body))
        work = asyncio.ensure_future(self._handler(self, send, body))
        gone = asyncio.ensure_future(receive())
        await asyncio.wait({work, gone}, return_when=asyncio.FIRST_COMPLETED)
        if not work.done():
            self.cancelled += 1
            work.cancel()
            await asyncio.wait({work})
        gone.cancel()
        if not work.cancelled():
            work.result()


async def live(receive: Any, send: Any) -> None:
    """Answers a server that starts an app and stops it again."""
    while (message := await receive())["type"] != "lifespan.shutdown":
        await send({"type": message["type"] + ".complete"})
    await send({"type": "lifespan.shutdown.complete"})


def frame(payload: Any) -> bytes:
    return b"data: " + (payload if isinstance(payload, str) else json.dumps(payload)).encode() + b"\n\n"


def chunk(delta: dict[str, Any], finish: str | None = None) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion.chunk",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "delta": delta, "finish_reason": finish}],
    }


def whole(content: str) -> dict[str, Any]:
    return {
        "id": "chatcmpl-1",
        "object": "chat.completion",
        "created": 1,
        "model": "m",
        "choices": [{"index": 0, "message": {"role": "assistant", "content": content}, "finish_reason": "stop"}],
        "usage": {"prompt_tokens": 1, "completion_tokens": 1, "total_tokens": 2},
    }


async def start(send: Any, status: int = 200, kind: str = "application/json", **headers: str) -> None:
    extra = [(name.replace("_", "-").encode(), value.encode()) for name, value in headers.items()]
    await send({"type": "http.response.start", "status": status, "headers": [(b"content-type", kind.encode()), *extra]})


async def end(send: Any, body: bytes = b"") -> None:
    await send({"type": "http.response.body", "body": body, "more_body": False})


def answering(body: Any = None, status: int = 200, **headers: str) -> Engine:
    """Returns an engine that answers every request with the same JSON body."""

    async def handle(engine: Engine, send: Any, _: bytes) -> None:
        await start(send, status, **headers)
        await end(send, json.dumps(whole("hello") if body is None else body).encode())

    return Engine(handle)


def streaming(frames: Sequence[bytes], *, hang: bool = False, pause_s: float = 0.0) -> Engine:
    """Returns an engine that streams the given bytes, one write each, then ends or, with `hang`, falls silent."""

    async def handle(engine: Engine, send: Any, _: bytes) -> None:
        await start(send, kind="text/event-stream; charset=utf-8")
        for part in frames:
            await send({"type": "http.response.body", "body": part, "more_body": True})
            await asyncio.sleep(pause_s)
        if hang:
            await asyncio.sleep(3600)
        await end(send)

    return Engine(handle)


def saying(stream: bool, content: str, calls: Sequence[dict[str, Any]] = ()) -> Engine:
    """Returns an engine that says something, five characters at a time in a stream, and makes calls, each whole."""
    reason = "tool_calls" if calls else "stop"
    if stream:
        frames = [frame(chunk({"content": content[at : at + 5]})) for at in range(0, len(content), 5)]
        frames += [frame(chunk({"tool_calls": [{"index": 0, **each}]})) for each in calls]
        return streaming([*frames, frame(chunk({}, reason)), DONE])
    message = {"role": "assistant", "content": content or None, **({"tool_calls": calls} if calls else {})}
    choice = {"index": 0, "message": message, "finish_reason": reason}
    return answering({"id": "x", "object": "chat.completion", "created": 1, "model": "m", "choices": [choice]})


def silent() -> Engine:
    """Returns an engine that accepts every request and never answers, as in a long prefill."""

    async def handle(engine: Engine, send: Any, _: bytes) -> None:
        await asyncio.sleep(3600)

    return Engine(handle)


class RunningEngine:
    """A vLLM server as its routes tell of it.

    Attributes:
        started: When its process started; another number is a restart. None if it does not tell.
        version: Of the engine.
        drafts: It has a drafter.
        key: It wants this key; None for none.
        kept_tokens: Of prompts, in its cache.
        away: It answers nothing but errors.
        tells_metrics: If not, it answers 500 to whoever asks for them, and serves all the same.
        served: Answered completions.
    """

    def __init__(self, drafts: bool = False, key: str | None = None) -> None:
        self.started: float | None = 1.0
        self.version, self.drafts, self.key = "0.32.0", drafts, key
        self.kept_tokens = 400_000
        self.away, self.tells_metrics = False, True
        self.served = 0

    async def __call__(self, scope: Any, receive: Any, send: Any) -> None:
        if scope["type"] == "lifespan":
            await live(receive, send)
            return
        body = b""
        while (message := await receive()).get("more_body"):
            body += message["body"]
        body += message.get("body", b"")
        status, answer = self._answer(scope["path"], body, dict(scope["headers"]))
        data = answer.encode() if isinstance(answer, str) else json.dumps(answer).encode()
        await send(
            {"type": "http.response.start", "status": status, "headers": [(b"content-type", b"application/json")]}
        )
        await send({"type": "http.response.body", "body": data})

    def _answer(self, path: str, body: bytes, headers: dict[bytes, bytes]) -> tuple[int, Any]:
        if self.away or (path == "/metrics" and not self.tells_metrics):
            return 500, {}
        if path == "/metrics":
            size = f'block_size="16",num_gpu_blocks="{self.kept_tokens // 16}"'
            cache = f'vllm:cache_config_info{{cache_dtype="auto",enable_prefix_caching="True",{size}}} 1.0\n'
            drafts = 'vllm:spec_decode_num_drafts_total{engine="0"} 0.0\n' if self.drafts else ""
            started = "" if self.started is None else f"process_start_time_seconds {self.started}\n"
            return 200, f"{started}{cache}{drafts}"
        if path == "/version":
            return 200, {"version": self.version}
        if self.key is not None and headers.get(b"authorization") != f"Bearer {self.key}".encode():
            return 401, {"error": "Unauthorized"}
        if path == "/v1/models":
            return 200, {"data": [{"id": "m", "owned_by": "vllm", "root": "Qwen/Qwen3-32B", "max_model_len": 4096}]}
        if path != "/v1/chat/completions":
            return 404, {"detail": "Not Found"}
        if b'"min_p"' in body and self.drafts:
            return 400, {"error": {"message": "min_p is not supported with speculative decoding"}}
        self.served += 1
        return 200, whole("hi")
