"""A plain answer to the client: the engine's bytes, untouched."""

from serve.errors import EngineError
from serve.exchange import Exchange
from serve.protocol import StreamEnd, answered_headers
from serve.telemetry import Telemetry, fail
from serve.upstream import Answer


async def relay(exchange: Exchange, answer: Answer, telemetry: Telemetry) -> None:
    """Send an engine's answer on, streamed as it arrives or whole.

    Raises:
        EngineError: The engine broke off; what was sent of a stream is all there is.
    """
    if not answer.is_stream:
        await exchange.whole(answer.status, answered_headers(answer.headers), await answer.body())
        return
    telemetry.first_token(exchange.arrived, exchange.candidate.pool if exchange.candidate else "")
    await exchange.start_stream(answer.status, answered_headers(answer.headers))
    end = StreamEnd()
    if data := end.feed(answer.first):
        await exchange.part(data)
    async for part in answer.rest():
        if data := end.feed(part):
            await exchange.part(data)
    if end.failed:
        fail(exchange.span, "the engine failed in the middle of the stream")
    elif not end.done:
        raise EngineError("The engine ended the stream before the answer was complete.")
    await exchange.end()
