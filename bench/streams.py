"""Compares streamed with whole answers of a real engine at every draft length: `python -m bench.streams`.

Each prompt is sent twice at temperature 0, streamed and whole; the OpenAI client must read the same reasoning, content
and calls from both. Prints one JSON line per model and draft length with the number of differences.
"""

import argparse
import asyncio
import json
import os
import sys
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import openai

from lab.deltas import fold_deltas
from models.dialogues import Dialogue, held_out
from serve.config.gateway import GatewayConfig

ROOT = Path(__file__).parents[1]
ENGINE_ENVIRONMENT = {
    "VLLM_CPU_KVCACHE_SPACE": "1",
    "VLLM_CPU_OMP_THREADS_BIND": "nobind",
    "OMP_NUM_THREADS": "1",
    "VLLM_LOGGING_LEVEL": "ERROR",
}


@dataclass(frozen=True)
class Answer:
    """An answer as a client sees it; call ids are left out because vLLM generates some of them at random."""

    reasoning: str
    content: str
    calls: tuple[tuple[str, str], ...]
    finish: str | None


def request_of(model: str, dialogue: Dialogue) -> dict[str, Any]:
    """Returns the dialogue's prompt as a chat completion request."""
    tools = {"tools": [tool.schema() for tool in dialogue.tools]} if dialogue.tools else {}
    template = {"thinking": dialogue.thinking, "enable_thinking": dialogue.thinking}
    messages = [_openai_message(message) for message in dialogue.messages]
    return {
        "model": model, "messages": messages, "temperature": 0, "max_tokens": 200, **tools,
        "extra_body": {"chat_template_kwargs": template},
    }  # fmt: skip


def _openai_message(message: dict[str, Any]) -> dict[str, Any]:
    calls = [
        {**call, "function": {**call["function"], "arguments": json.dumps(call["function"]["arguments"])}}
        for call in message.get("tool_calls", ())
    ]
    return {**message, "tool_calls": calls} if calls else message


async def whole(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Answer:
    """Request the whole answer at once."""
    choice = (await client.chat.completions.create(**request)).choices[0]
    calls = tuple((call.function.name, call.function.arguments) for call in choice.message.tool_calls or ())
    reasoning = (choice.message.model_extra or {}).get("reasoning") or ""
    return Answer(reasoning, choice.message.content or "", calls, choice.finish_reason)


async def streamed(client: openai.AsyncOpenAI, request: dict[str, Any]) -> Answer:
    """Request a stream and fold it as clients do."""
    finish = None
    deltas = []
    async for chunk in await client.chat.completions.create(**request, stream=True):
        for choice in chunk.choices:
            finish = choice.finish_reason or finish
            deltas.append(choice.delta.model_dump())
    message = fold_deltas(deltas)
    functions = [call["function"] for call in message.get("tool_calls", ())]
    calls = tuple((function["name"], function["arguments"]) for function in functions)
    return Answer(message.get("reasoning", ""), message.get("content", ""), calls, finish)


async def differences(client: openai.AsyncOpenAI, model: str, dialogues: list[Dialogue]) -> list[tuple[Answer, Answer]]:
    """Returns every pair of answers, streamed and whole, that differ."""
    requests = [request_of(model, dialogue) for dialogue in dialogues]
    pairs = await asyncio.gather(
        *(asyncio.gather(streamed(client, request), whole(client, request)) for request in requests)
    )
    return [(a, b) for a, b in pairs if a != b]


async def measure(model: str, drafts: int, count: int) -> dict[str, Any]:
    """Start one speculative engine of the laptop config with a draft length of `drafts`, and compare."""
    from serve.engine.vllm import host as vllm_host
    from serve.http1.listener import Listener

    config = GatewayConfig.load(ROOT / "deploy" / "laptop.yaml").models[model]
    args = config.engine_args_of("speculative")
    args["speculative-config"] = args["speculative-config"] | {"num_speculative_tokens": drafts}
    listener = Listener("127.0.0.1")
    engine = await vllm_host.start_engine(vllm_host.parse_args(args, (model,), listener.key), opt_out=True)
    try:
        await listener.start(engine.app)
        url = f"http://127.0.0.1:{listener.port}/v1"
        async with openai.AsyncOpenAI(base_url=url, api_key=listener.key, timeout=300, max_retries=0) as client:
            pairs = await differences(client, model, held_out(count))
    finally:
        await listener.stop()
        engine.shutdown()
    return {"model": model, "drafts": drafts, "prompts": count, "different": len(pairs), "first": str(pairs[:1])}


def main() -> None:
    """Measure each draft length in turn."""
    parser = argparse.ArgumentParser(description=__doc__)
    parser.add_argument("--models", default="tiny-kimi,tiny-qwen")
    parser.add_argument("--drafts", default="1,2,3,4,5")
    parser.add_argument("--prompts", type=int, default=60)
    options = parser.parse_args()
    os.environ.update(ENGINE_ENVIRONMENT)
    wrong = 0
    for model in options.models.split(","):
        for drafts in map(int, options.drafts.split(",")):
            row = asyncio.run(measure(model, drafts, options.prompts))
            wrong += row["different"]
            print(json.dumps(row, ensure_ascii=False), flush=True)
    sys.exit(1 if wrong else 0)


if __name__ == "__main__":
    main()
