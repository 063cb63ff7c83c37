"""Completions have apps of their own: chat goes to the gateway as it is, other APIs through their dialect."""

from typing import Any

import pytest

from serve.dialects.api import DIALECTS, DialectApi
from serve.gateway.hot_routes import hot_routes
from serve.proxy.exchange import Api


class Gateway:
    """Notes in which API it is asked."""

    def __init__(self) -> None:
        self.apis: list[Api] = []

    async def respond(self, api: Api, *asgi: Any) -> None:
        self.apis.append(api)


def test_chat_and_text_completions_go_to_the_gateway_itself() -> None:
    gateway: Any = Gateway()
    routes = hot_routes(gateway)
    assert routes["/v1/chat/completions"] is routes["/v1/completions"] is gateway


@pytest.mark.parametrize("path", DIALECTS)
async def test_each_request_in_another_api_has_a_translation_of_its_own(path: str) -> None:
    gateway: Any = Gateway()
    app = hot_routes(gateway)[path]
    for _ in range(2):
        await app({}, None, None)  # type: ignore[arg-type]
    first, second = gateway.apis
    assert isinstance(first, DialectApi)
    assert first is not second
