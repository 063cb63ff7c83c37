"""A client that disconnects frees the engine: no GPU time for abandoned requests."""

import asyncio
import time

import aiohttp

from lab.conform.case import Case, CaseResult, passed_if
from lab.conform.lab import Lab, Trial
from lab.scripted.arrival import Arrival
from lab.scripted.scripts import silent, text_frames


async def _without_end(arrival: Arrival) -> None:
    await arrival.begin()
    while True:
        for piece in text_frames(["more "], finish=None):
            await arrival.write(piece)
        await asyncio.sleep(0.1)


async def _freed(lab: Lab, trial: Trial, left: float) -> CaseResult:
    """Every try of the request must be given up, within the pace's patience."""
    if not trial.arrivals:
        return passed_if(False, "nothing reached the engine")
    waiting = [asyncio.create_task(arrival.gone.wait()) for arrival in trial.arrivals]
    _, pending = await asyncio.wait(waiting, timeout=lab.pace.cancel_s)
    for task in pending:
        task.cancel()
    if pending:
        return passed_if(False, f"still at work {lab.pace.cancel_s:g} s later")
    return passed_if(True, f"free after {time.monotonic() - left:.2f} s")


async def _leave_in_prefill(lab: Lab, *, stream: bool) -> CaseResult:
    trial = lab.trial(silent)
    asking = asyncio.create_task(lab.send(lab.body(trial, stream=stream)))
    await trial.arrival()
    asking.cancel()
    left = time.monotonic()
    await asyncio.wait({asking})
    return await _freed(lab, trial, left)


async def prefill_whole(lab: Lab) -> CaseResult:
    return await _leave_in_prefill(lab, stream=False)


async def prefill_stream(lab: Lab) -> CaseResult:
    return await _leave_in_prefill(lab, stream=True)


async def mid_stream(lab: Lab) -> CaseResult:
    trial = lab.trial(_without_end)
    try:
        async with asyncio.timeout(lab.pace.prefill_s), lab.open(lab.body(trial, stream=True)) as response:
            await response.content.readany()
            response.close()
    except TimeoutError:
        pass  # nothing of the stream came yet; the client leaves all the same
    except aiohttp.ClientError as error:
        return passed_if(False, f"no stream: {type(error).__name__}")
    return await _freed(lab, trial, time.monotonic())


_SOURCE = "LiteLLM issue 37140; vLLM aborts a request when its connection closes"

CASES = (
    Case("leave-prefill", "A client that leaves in prefill frees the engine within seconds.", _SOURCE, prefill_whole),
    Case("leave-prefill-stream", "The same when it asked for a stream.", _SOURCE, prefill_stream),
    Case("leave-stream", "A client that leaves in the stream frees the engine within seconds.", _SOURCE, mid_stream),
)
