"""Explains the decision for a request, by the code that decides real ones."""

from collections.abc import Mapping
from typing import Any

from policies import choose, decide, explain
from serve.access.principal import ANONYMOUS, Principal
from serve.dialects.table import as_chat
from serve.gateway.pipeline import Gateway
from serve.request.beside import beside
from serve.request.completion import CHAT_PATH, TEXT_PATH
from serve.request.density import LONG_BODY_BYTES
from serve.request.resuming import obstacle


async def explanation(
    gateway: Gateway, body: bytes, headers: Mapping[str, str], api: str = "chat", principal: Principal = ANONYMOUS
) -> tuple[dict[str, Any], str]:
    """Returns the decision for a request and the evidence for it; no engine is asked, and nothing is counted.

    Args:
        gateway: Whose policy and load decide.
        body: The request's.
        headers: From `request_headers`.
        api: `chat`, which includes text completions, or the name of a dialect.
        principal: Who asks.

    Raises:
        GatewayError: The request is wrong.
    """
    body = await beside(len(body) > LONG_BODY_BYTES, as_chat, body, headers, api)
    read = await gateway.read(body, headers, principal)
    features = read.features
    decision = decide(gateway.policy, features, features.preference)
    load = gateway.load
    figures = () if decision.refused else load.figures(decision, features, len(body))
    decision = choose(decision, load.order(decision, features, len(body), count=False))
    decision = gateway.foretold(TEXT_PATH if read.parsed.messages is None else CHAT_PATH, decision)
    explained = explain(gateway.policy, features, decision)
    if (why := obstacle(features)) is not None:
        explained = {**explained, "rerun_only": why}  # a broken answer can't go on elsewhere
    return {**explained, "load": figures} if figures else explained, decision.evidence
