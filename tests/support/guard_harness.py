"""Feeds a guard from simulated engines, without HTTP, and reads its output as a client would."""

import json
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

from lab.sim import SimSettings, wire
from lab.sim.generation import Generation
from serve.config.guard import GuardConfig
from serve.guard.core import Guard, GuardState
from serve.proxy.exchange import CHAT
from serve.stream.frame import Frame

TOOL_PARAMETERS = {
    "type": "object",
    "properties": {
        "city": {"type": "string", "minLength": 2},
        "days": {"type": "integer", "minimum": 1, "maximum": 9},
        "notes": {"type": "array", "items": {"type": "string"}},
    },
    "required": ["city", "days"],
    "additionalProperties": False,
}
TOOLS = [
    {"type": "function", "function": {"name": name, "parameters": TOOL_PARAMETERS}}
    for name in ("get_weather", "run.shell", "plan_trip")
]


CLEAN = SimSettings(num_speculative_tokens=3)
ENVELOPE = {"id": "c1", "object": "chat.completion.chunk", "created": 1, "model": "m"}


class SentTo:
    """Stands for an exchange: keeps what is sent to its client."""

    status, write, api, keep_alive = 0, None, CHAT, None

    def __init__(self) -> None:
        self.sent = b""
        self.parts: list[int] = []  # their sizes

    async def start_stream(self, status: int, headers: Any) -> None:
        self.status = status

    def keep_alive_from_now(self) -> None:
        """Nobody waits here."""

    async def part(self, data: bytes) -> None:
        self.sent += data
        self.parts.append(len(data))

    async def send_whole(self, status: int, headers: Any, body: bytes) -> None:
        self.status, self.sent = status, body

    async def end_stream(self, frames: Sequence[Frame] = ()) -> None:
        await self.part(b"".join(frame.encoded() for frame in frames))


def broken(fault: str, **options: Any) -> SimSettings:
    return SimSettings(num_speculative_tokens=3, faults={fault: 1.0}, **options)


def chunk(delta: dict[str, Any], reason: str | None = None, index: int = 0) -> dict[str, Any]:
    return {**ENVELOPE, "choices": [{"index": index, "delta": delta, "logprobs": None, "finish_reason": reason}]}


def call(index: int, name: str, arguments: str, identity: str | None = None) -> dict[str, Any]:
    function = {"name": name, "arguments": arguments}
    return {"index": index, "id": identity or f"id{index}", "type": "function", "function": function}


def calls(*entries: dict[str, Any]) -> dict[str, Any]:
    return {"tool_calls": list(entries)}


def tools_request(seed: int = 0, **extra: Any) -> dict[str, Any]:
    return {"messages": [{"role": "user", "content": "天气"}], "tools": TOOLS, "seed": seed, **extra}


def json_request(seed: int = 0, strict: bool = True, **extra: Any) -> dict[str, Any]:
    form = {"type": "json_schema", "json_schema": {"name": "n", "strict": strict, "schema": TOOL_PARAMETERS}}
    return {"messages": [{"role": "user", "content": "plan"}], "response_format": form, "seed": seed, **extra}


def chunks_of(body: Mapping[str, Any], pool: SimSettings, identity: str = "chatcmpl-1") -> list[dict[str, Any]]:
    """Returns the chunks that a simulated engine streams for a request."""
    generation = Generation(body, pool)
    envelope = wire.ResponseBuilder(identity, "m", 1, chat=True, prompt_tokens=10)
    chunks = [envelope.chunk(0, {"role": "assistant", "content": ""})]
    chunks += [envelope.chunk(0, delta) for delta in generation.deltas() if delta]
    return [*chunks, envelope.chunk(0, {}, generation.finish_reason), envelope.usage_chunk([generation])]


def answer_of(body: Mapping[str, Any], pool: SimSettings) -> dict[str, Any]:
    return wire.ResponseBuilder("chatcmpl-1", "m", 1, chat=True, prompt_tokens=10).whole([Generation(body, pool)])


def through(guard: Guard, *attempts: Iterable[dict[str, Any]]) -> list[dict[str, Any]]:
    """Returns the chunks a client gets if the pools answer in turn; gives up after the last one."""
    sent: list[dict[str, Any]] = []
    for number, chunks in enumerate(attempts):
        if number:
            guard.restart("standard")
        for chunk in chunks:
            sent += guard.feed(chunk)
            if guard.state is not GuardState.OPEN:
                break
        else:
            sent += guard.finish()
        if guard.state is not GuardState.RERUN:
            break
    if guard.state in (GuardState.RERUN, GuardState.FAILED):
        sent += guard.give_up()
    return sent


def healed(
    body: Mapping[str, Any], *pools: SimSettings, settings: GuardConfig | None = None
) -> tuple[list[dict[str, Any]], Guard]:
    guard = Guard(settings or GuardConfig(), body)
    return through(guard, *(chunks_of(body, pool, f"chatcmpl-{n}") for n, pool in enumerate(pools))), guard


def read(chunks: Iterable[Mapping[str, Any]]) -> dict[str, Any]:
    """Fold a client's stream and check the rules that clients rely on."""
    message: dict[str, Any] = {"reasoning": "", "content": "", "calls": [], "finish": [], "error": None}
    identities = set()
    for chunk in chunks:
        if "error" in chunk:
            message["error"] = chunk["error"]
            continue
        identities.add((chunk["id"], chunk["created"], chunk["model"]))
        for choice in chunk["choices"]:
            assert not message["finish"], "something follows the finish reason"
            _add(message, choice)
    assert len(identities) <= 1, "the envelope changes in mid-stream"
    return message


def _add(message: dict[str, Any], choice: Mapping[str, Any]) -> None:
    delta = choice["delta"]
    for name in ("reasoning", "content"):
        message[name] += delta.get(name) or ""
    for entry in delta.get("tool_calls") or ():
        if entry["index"] == len(message["calls"]):
            assert set(entry) == {"index", "id", "type", "function"}
            assert entry["function"]["name"]
            message["calls"].append({"id": entry["id"], **entry["function"]})
        else:
            assert set(entry) == {"index", "function"}
            assert set(entry["function"]) == {"arguments"}
            assert entry["index"] == len(message["calls"]) - 1
            message["calls"][-1]["arguments"] += entry["function"]["arguments"]
    if choice["finish_reason"]:
        message["finish"].append(choice["finish_reason"])


def calls_of(message: Mapping[str, Any]) -> list[tuple[str, Any]]:
    return [(call["name"], json.loads(call["arguments"])) for call in message["calls"]]
