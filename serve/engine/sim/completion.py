"""Runs one request to the simulated engine: queueing, prefill, steps, transport faults, the end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from itertools import zip_longest
from typing import Any

from serve.engine.sim import wire
from serve.engine.sim.deltas import Delta
from serve.engine.sim.generation import Generation
from serve.engine.sim.response import ClientGoneError, SimResponse
from serve.engine.sim.schema_instance import NoInstanceError
from serve.engine.sim.settings import SimSettings
from serve.engine.sim.stats import SimStats
from serve.errors import InvalidRequestError
from serve.sse import DONE, encode_frame

DEAD_ENGINE = "EngineCore encountered an issue."


class Completion:
    """A valid request and its answers.

    Args:
        body: The request.
        settings: The simulated engine's settings.
        stats: The engine's counters and slots.
        chat: True for `/v1/chat/completions`, False for `/v1/completions`.

    Raises:
        InvalidRequestError: The simulation cannot generate an instance of a schema in the request.
    """

    def __init__(self, body: Mapping[str, Any], settings: SimSettings, stats: SimStats, *, chat: bool) -> None:
        self._settings = settings
        self._stats = stats
        self._chat = chat
        self._stream = bool(body.get("stream"))
        self._with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        try:
            self._generations = [Generation(body, settings, choice) for choice in range(body.get("n") or 1)]
        except NoInstanceError as error:
            raise InvalidRequestError(str(error), "tools") from error
        prompt = body["messages"] if chat else body["prompt"]
        identity = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self._envelope = wire.ResponseBuilder(
            identity, settings.model, int(time.time()), chat=chat, prompt_tokens=max(1, len(str(prompt)) // 4)
        )
        faulty = (generation for generation in self._generations if generation.fault)
        self._fault = next(faulty, self._generations[0])

    async def run(self, response: SimResponse) -> None:
        """Send the response and count its outcome."""
        states = self._stats.states
        states["started"] += 1
        outcome = "cancelled"
        with self._stats.during("waiting"):
            await self._stats.slots.acquire()
        try:
            with self._stats.during("running"):
                await self._answer(response)
            outcome = "finished"
        except ClientGoneError:
            outcome = "cancelled"
        finally:
            self._stats.slots.release()
            states[outcome] += 1

    async def _answer(self, response: SimResponse) -> None:
        settings = self._settings
        transport = self._fault.transport
        headers = {"x-sim-engine": str(os.getpid())}  # identifies the replica for tests of balance and loss
        if self._fault.fault:
            self._stats.faults[self._fault.fault] += 1
            headers["x-sim-fault"] = self._fault.fault
        await response.pause(settings.prefill_ms / 1e3 + (settings.stall_s if transport == "slow_start" else 0))
        if transport == "http_500":
            body = wire.error_body("Internal server error", "InternalServerError", 500)
            await response.send_json(500, body, headers)
        elif self._stream:
            await response.start_stream(headers)
            await self._send_stream(response)
        else:
            await self._send_whole(response, headers)
        for generation in self._generations:
            self._stats.add_generation(generation.speculation, generation.completion_tokens)

    async def _send_whole(self, response: SimResponse, headers: dict[str, str]) -> None:
        answer = self._envelope.whole(self._generations)
        steps = max(generation.speculation.steps for generation in self._generations)
        stalled = self._settings.stall_s if self._fault.transport == "stall" else 0
        await response.pause(steps * self._settings.step_ms / 1e3 + stalled)
        if self._fault.transport == "disconnect":
            await response.send_half(answer, headers)
        elif self._fault.transport == "error_mid_stream":
            await response.send_json(500, wire.error_body(DEAD_ENGINE, "InternalServerError", 500), headers)
        else:
            await response.send_json(200, answer, headers)

    async def _send_stream(self, response: SimResponse) -> None:
        envelope, choices = self._envelope, range(len(self._generations))
        if self._chat:
            for index in choices:
                await response.send_bytes(encode_frame(envelope.chunk(index, {"role": "assistant", "content": ""})))
        breaks_at = max(generation.speculation.steps for generation in self._generations) // 2
        for step, deltas in enumerate(self._steps()):
            await response.pause(self._settings.step_ms / 1e3)
            if step == breaks_at and await self._broken(response):
                return
            for index, delta in enumerate(deltas):
                if delta:
                    await response.send_bytes(encode_frame(envelope.chunk(index, delta)))
        for index in choices:
            last = envelope.chunk(index, {}, self._generations[index].finish_reason)
            await response.send_bytes(encode_frame(last))
        if self._with_usage:
            await response.send_bytes(encode_frame(envelope.usage_chunk(self._generations)))
        await response.send_bytes(DONE)
        await response.end_stream()

    def _steps(self) -> Iterator[tuple[Delta | None, ...]]:
        return zip_longest(*(generation.deltas() for generation in self._generations))

    async def _broken(self, response: SimResponse) -> bool:
        """Inject a transport fault in mid-answer; returns True if the answer ends with it."""
        transport = self._fault.transport
        if transport == "stall":
            await response.pause(self._settings.stall_s)
        if transport == "error_mid_stream":
            error = wire.error_body(DEAD_ENGINE, "InternalServerError", 500)
            await response.send_bytes(encode_frame(error))
            await response.send_bytes(DONE)
            await response.end_stream()
        return transport in ("disconnect", "error_mid_stream")
