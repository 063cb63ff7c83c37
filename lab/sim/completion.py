"""Runs one request to the simulated engine: queueing, prefill, steps, transport faults, the end."""

from __future__ import annotations

import os
import time
import uuid
from collections.abc import Iterator, Mapping
from contextlib import AsyncExitStack
from itertools import zip_longest
from typing import Any

from lab.sim import wire
from lab.sim.deltas import Delta
from lab.sim.generation import Generation
from lab.sim.kv_cache import Part
from lab.sim.pace import Pace, Seat
from lab.sim.prompt import prompt_parts
from lab.sim.response import ClientGoneError, SimResponse
from lab.sim.schema_instance import NoInstanceError
from lab.sim.settings import SimSettings
from lab.sim.stats import SimStats
from serve.errors import InvalidRequestError
from serve.http1.sse import DONE, encode_frame

DEAD_ENGINE = "EngineCore encountered an issue."


class Completion:
    """A valid request and its answers.

    Args:
        body: The request.
        settings: The simulated engine's settings.
        stats: The engine's counters.
        pace: Gives out seats and steps.
        chat: True for `/v1/chat/completions`, False for `/v1/completions`.

    Raises:
        InvalidRequestError: The simulation cannot generate an instance of a schema in the request.
    """

    def __init__(
        self, body: Mapping[str, Any], settings: SimSettings, stats: SimStats, pace: Pace, *, chat: bool
    ) -> None:
        self._settings = settings
        self._stats = stats
        self._pace = pace
        self._chat = chat
        self._stream = bool(body.get("stream"))
        self._with_usage = bool((body.get("stream_options") or {}).get("include_usage"))
        try:
            self._generations = [Generation(body, settings, choice) for choice in range(body.get("n") or 1)]
        except NoInstanceError as error:
            raise InvalidRequestError(str(error), param="tools") from error
        self._prompt = prompt_parts(body)
        identity = ("chatcmpl-" if chat else "cmpl-") + uuid.uuid4().hex
        self._envelope = wire.ResponseBuilder(
            identity,
            settings.model,
            int(time.time()),
            chat=chat,
            prompt_tokens=sum(part.tokens for part in self._prompt),
        )
        faulty = (generation for generation in self._generations if generation.fault)
        self._fault = next(faulty, self._generations[0])

    async def run(self, response: SimResponse) -> None:
        """Send the response and count its outcome."""
        states = self._stats.states
        states["started"] += 1
        outcome = "cancelled"
        tokens = sum(generation.completion_tokens for generation in self._generations)
        answer = Part(object(), tokens)  # clients repeat it in other words: it is no part of the next prompt
        try:
            async with AsyncExitStack() as stack:
                with self._stats.during("waiting"):
                    seat = await stack.enter_async_context(
                        self._pace.seat(response, self._prompt, answer, self._longest)
                    )
                with self._stats.during("running"):
                    await self._answer(response, seat)
            outcome = "finished"
        except ClientGoneError:
            outcome = "cancelled"
        finally:
            states[outcome] += 1

    @property
    def _longest(self) -> int:
        """Steps of the longest of its answers."""
        return max(generation.speculation.steps for generation in self._generations)

    async def _answer(self, response: SimResponse, seat: Seat) -> None:
        settings = self._settings
        transport = self._fault.transport
        headers = {"x-sim-engine": str(os.getpid())}  # identifies the replica for tests of balance and loss
        if self._fault.fault:
            self._stats.faults[self._fault.fault] += 1
            headers["x-sim-fault"] = self._fault.fault
        await seat.prefill()
        if transport == "slow_start":
            await response.pause(settings.stall_s)
        if transport == "http_500":
            body = wire.error_body("Internal server error", "InternalServerError", 500)
            await response.send_json(500, body, headers)
            return
        self._stats.add_prompt(sum(part.tokens for part in self._prompt))
        if self._stream:
            await response.start_stream(headers)
            await self._send_stream(response, seat)
        else:
            await self._send_whole(response, headers, seat)
        for generation in self._generations:
            self._stats.add_speculation(generation.speculation)

    async def _send_whole(self, response: SimResponse, headers: dict[str, str], seat: Seat) -> None:
        answer = self._envelope.whole(self._generations)
        await seat.steps(self._longest)
        self._stats.add_tokens(sum(generation.completion_tokens for generation in self._generations))
        if self._fault.transport == "stall":
            await response.pause(self._settings.stall_s)
        if self._fault.transport == "disconnect":
            await response.send_half(answer, headers)
        elif self._fault.transport == "error_mid_stream":
            await response.send_json(500, wire.error_body(DEAD_ENGINE, "InternalServerError", 500), headers)
        else:
            await response.send_json(200, answer, headers)

    async def _send_stream(self, response: SimResponse, seat: Seat) -> None:
        envelope, choices = self._envelope, range(len(self._generations))
        if self._chat:
            for index in choices:
                await response.send_bytes(encode_frame(envelope.chunk(index, {"role": "assistant", "content": ""})))
        breaks_at = self._longest // 2
        for step, deltas in enumerate(self._steps()):
            if step < self._longest:  # after the last one comes what the parser held back
                await seat.steps(1)
                self._stats.add_tokens(sum(generation.tokens_of(step) for generation in self._generations))
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
