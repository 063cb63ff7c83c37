"""Engines that send odd or endless answers: the client has a valid answer or an explicit error, and others go on."""

from typing import Any

import pytest
from support.engines import chunk, frame, streaming
from support.guard_harness import TOOLS
from support.guard_stack import chunks_in, config, post
from support.stack import running

DONE = b"data: [DONE]\n\n"
HELLO = [{"role": "user", "content": "hello"}]
WITH_TOOLS: dict[str, Any] = {"model": "m", "messages": HELLO, "tools": TOOLS, "stream": True}
PLAIN: dict[str, Any] = {"model": "m", "messages": HELLO, "stream": True}


@pytest.mark.parametrize("body", [PLAIN, WITH_TOOLS], ids=["plain", "guarded"])
async def test_an_answer_in_one_long_write_arrives_whole(body: dict[str, Any]) -> None:
    answer = b"".join([frame(chunk({"content": f"word {n} "})) for n in range(3_000)])
    whole = answer + frame(chunk({}, "stop")) + DONE
    engine = streaming([whole])
    async with running(config(), {("m", "speculative"): engine, ("m", "standard"): engine}) as stack:
        status, _, got = await post(stack.url, body)
    assert (status, chunks_in(got)) == (200, chunks_in(whole))
