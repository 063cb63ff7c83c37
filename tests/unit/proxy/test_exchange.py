"""What an exchange sends when its response cannot begin."""

from typing import Any

import pytest
from opentelemetry.trace import INVALID_SPAN

from serve.errors import GatewayError
from serve.proxy.exchange import Exchange

BROKEN = [(b"x-odd", b"1\n")]


@pytest.mark.parametrize("streamed", [True, False])
async def test_an_error_instead_of_a_head_that_cannot_be_sent_is_a_response_of_its_own(streamed: bool) -> None:
    sent: list[Any] = []

    async def send(message: Any) -> None:
        if BROKEN[0] in message.get("headers", ()):
            raise ValueError("a header holds a line break")
        sent.append(message)

    exchange = Exchange("/v1/chat/completions", {}, send, "r1", INVALID_SPAN)
    with pytest.raises(ValueError, match="line break"):
        await (exchange.start_stream(200, BROKEN) if streamed else exchange.whole(200, BROKEN, b"{}"))
    await exchange.refuse(GatewayError("Internal error."))
    head, body = sent
    assert (head["type"], head["status"]) == ("http.response.start", 500)
    assert body["body"].startswith(b'{"error":{"message":"Internal error."')
